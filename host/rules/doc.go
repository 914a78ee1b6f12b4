// Package rules changes the policies of boxes and applies them. [Service] changes policies, named policies of this host and of
// its fleet, temporary entries, header rules, source addresses and limits. [Protection] keeps the host's own addresses
// protected, and [Quota] cuts off boxes that have used up their traffic quota.
//
// Every change goes through [change.Apply]: staged in the store, applied by [enforce.Enforcer], then committed or rolled
// back. A box's policy is compiled in one place, from the box's own inputs and from [Shared].
//
// Lock order: the mutex of the global header rules, the one of the fleet's policies, the mutex of the named policies, the lock of a box, Shared's mutex.
package rules
