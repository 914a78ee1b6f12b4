// Package h2connect enables extended CONNECT (RFC 8441) in golang.org/x/net/http2, which can only be done by an
// environment variable read during initialization.
//
// It relies on initialization order: packages are initialized sorted by import path once their imports are ready (Go
// specification, "Program initialization"), so this one, which imports next to nothing, comes before http2. A package
// that imports both calls [Restore] from its own init, so that child processes do not inherit the variable. A test of
// package proxy makes an extended CONNECT and fails if the order ever changes.
package h2connect

import "os"

const variable = "GODEBUG"

var (
	before string
	had    bool
)

func init() {
	before, had = os.LookupEnv(variable)
	value := "http2xconnect=1"
	if before != "" {
		value = before + "," + value
	}
	_ = os.Setenv(variable, value) // fails for no valid name
}

// Restore resets the environment variable to its value at program start.
func Restore() {
	if had {
		_ = os.Setenv(variable, before)
		return
	}
	_ = os.Unsetenv(variable)
}
