// Package harness is shared by the end-to-end tests. It has a [World], which is a lab with a gateway, programs in its
// boxes ([Intruder], [Raider]) that send data that no library would, and helpers that wait for conditions.
package harness
