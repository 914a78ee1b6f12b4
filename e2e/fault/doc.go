// Package fault lets the gateway fail at every step that can fail, and takes away what it stands on: its disk, its memory of
// connections, its clock, its rules; boxes attack all the while.
package fault
