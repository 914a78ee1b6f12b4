// Package problem describes why traffic is refused: to the box, in texts made only of the box's own input, rules of its own
// policy and constants of the source code; to the log, in full.
package problem
