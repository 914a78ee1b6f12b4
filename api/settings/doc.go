// Package settings serves what can be changed of boxes besides their rules: the environment that new boxes get, and the
// labels, the model, the custom harness and the skills of a box, and the addresses that its traffic leaves from.
package settings
