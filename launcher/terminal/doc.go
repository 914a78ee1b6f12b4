// Package terminal receives the pseudo-terminals that the OCI runtime opens in boxes.
package terminal
