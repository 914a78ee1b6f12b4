// Package problem says why traffic is refused: to the box, in texts that hold nothing but what the box sent, rules of its own
// policy and words that stand in the sources; to the log, in full.
package problem
