// Package fidelity tests that data passes the gateway unchanged, byte by byte and event by event, except for the
// gateway's intended changes.
package fidelity
