// Package egress serves the decisions about the traffic of boxes: past ones, a live stream, and explanations of
// hypothetical requests.
package egress
