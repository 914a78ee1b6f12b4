// Package state holds the boxes of the gateway in memory: [Box] is one box, with its policy in force, its stored record and its state,
// and [Table] finds boxes. It decides nothing and puts nothing in force.
//
// The atomic fields of a box may be read at any time. All others are guarded by its lock, which a change holds for as long as it takes;
// slow steps let go of it ([Box.Unlocked]).
//
// Lock order: the lock of a box before that of the table. Only a change of a named policy holds the locks of several boxes.
package state
