// Package flow reads and cuts the connections that the kernel forwards for boxes, through the kernel's connection table.
package flow
