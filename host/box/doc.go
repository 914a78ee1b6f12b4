// Package box makes, attaches, recovers and deletes boxes. A box comes into being by a list of steps ([Provisioner]), each of which is undone
// if a later one fails; in each list its policy is in force before its first process runs. [Service] answers the calls of the API and
// recovers the boxes of an earlier run, [Settings] keeps what can be changed of boxes besides their rules, [Snapshots] takes snapshots,
// and [Authorities] has the certificate authorities.
//
// Lock order: the named policies ([rules.Shared.HoldNamed]) before the lock of a box before that of the table. Slow steps run without the
// lock of the box.
package box
