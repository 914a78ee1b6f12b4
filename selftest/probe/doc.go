// Package probe is the process in the box's network namespace that sends the traffic of a self-test, and the protocol
// to control it. The process holds no secrets and makes no decisions.
package probe
