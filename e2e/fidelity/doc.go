// Package fidelity holds that what passes the gateway arrives as it was sent, byte by byte and event by event, but for what
// the gateway is there to change.
package fidelity
