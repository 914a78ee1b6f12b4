// Package h2connect enables extended CONNECT (RFC 8441) in the HTTP/2 servers of net/http and golang.org/x/net/http2 that
// tests compare the gateway with, which can only be done by an environment variable read during initialization. The
// gateway itself does not import it.
//
// It relies on initialization order: packages are initialized sorted by import path once their imports are ready (Go
// specification, "Program initialization"), so this one, which imports next to nothing, comes before those. A test that
// imports it calls [Restore] from its own init, so that child processes do not inherit the variable.
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
