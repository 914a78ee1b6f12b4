// Package problem says why traffic is refused: to the box, in texts made only of what the box sent, rules of its own
// policy and constants of the source code; to the log, in full.
package problem
