// Package fault makes the gateway fail at every step that can fail, and breaks its environment: its disk, its
// connection tracking, its clock, its rules. Boxes attack the whole time.
package fault
