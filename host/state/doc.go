// Package state holds the boxes of the gateway in memory. [Box] is one box with its applied policy, its stored record and
// its state; [Table] finds boxes. The package makes no decisions, and does not change the kernel.
//
// The atomic fields of a box may be read at any time. All others are guarded by its lock, which a change holds
// throughout; slow steps release it ([Box.Unlocked]).
//
// Lock order: the lock of a box before that of the table. Only a change of a named policy holds the locks of several
// boxes.
package state
