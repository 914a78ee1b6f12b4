// Package box creates, attaches, recovers and deletes boxes. Each of these is a list of steps ([Provisioner]) that are
// undone if a later one fails; in each list the box's policy is applied before its first process runs. [Service] answers
// the API calls and recovers the boxes of an earlier run, [Settings] changes settings of boxes other than their rules,
// [Snapshots] takes snapshots, and [Authorities] holds the certificate authorities.
//
// Lock order: the named policies ([rules.Shared.LockNamed]), the lock of a box, the lock of the table. Slow steps run
// without the lock of the box.
package box
