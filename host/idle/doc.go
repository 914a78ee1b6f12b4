// Package idle tracks the users of each box, so that a box in use is never paused.
package idle
