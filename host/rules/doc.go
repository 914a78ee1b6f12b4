// Package rules changes what boxes may do, and puts it in force: [Service] changes policies, named policies, temporary entries, header
// rules, source addresses and limits; [Protection] keeps the addresses of the host protected, and [Quota] cuts off boxes that have
// transferred as much as they may.
//
// Every change is made by [change.Apply]: staged in the store, put in force by [enforce.Enforcer], committed; or rolled back. The policy
// of a box is compiled in one place, from its own inputs and from [Shared].
//
// Lock order: the mutex of the global header rules, then that of the named policies, then the lock of a box, then Shared's.
package rules
