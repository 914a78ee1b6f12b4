// Package cli runs commands against a gateway, as an operator does: check, log, box selftest, metrics.
package cli
