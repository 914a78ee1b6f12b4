// Package cli runs the commands of the gateway against a gateway, as an operator does: check, log, box selftest, metrics.
package cli
