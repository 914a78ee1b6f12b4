// Package flow reads and ends the connections that the kernel forwards for boxes, by its connection table.
package flow
