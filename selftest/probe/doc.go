// Package probe is the process in the box's network namespace that sends the traffic of a self-test, and what it is told and
// answers. It holds no secret and decides nothing.
package probe
