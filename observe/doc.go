// Package observe sums up the traffic of boxes, allowed and refused, and keeps the sums on disk.
//
// A [Log] receives every decision before the log coalesces it, and adds it to the [Observation] with the same [Key]. It
// holds no request: of an HTTP request it keeps the method, the shape of the path and a few paths as examples. The sums
// outlive restarts, so that a policy can be derived from them, and a candidate replayed against them.
//
// The amount kept of one box is bounded ([MaxPerBox]), and so is the file. Decisions beyond a bound are counted, and the
// count is part of the [Summary]: a summary never looks more complete than it is. A box that floods the log cannot displace
// the observations of other boxes. Refused traffic cannot displace the observations of allowed traffic.
package observe
