// Package h2connect enables extended CONNECT (RFC 8441) in the HTTP/2 servers of net/http and golang.org/x/net/http2
// that tests compare the gateway with. The only way is an environment variable that they read during initialization.
// The gateway itself does not import this package.
//
// It relies on initialization order: packages are initialized in the order of their import paths as soon as their
// imports are initialized (Go specification, "Program initialization"). This package has hardly any imports and so
// comes first. A test that imports it calls [Restore] from its own init, so that child processes do not inherit the
// variable.
package h2connect

import "os"

const variable = "GODEBUG"

var (
	before string
	wasSet bool
)

func init() {
	before, wasSet = os.LookupEnv(variable)
	value := "http2xconnect=1"
	if before != "" {
		value = before + "," + value
	}
	_ = os.Setenv(variable, value) // cannot fail for a valid name
}

// Restore resets the environment variable to its value at program start.
func Restore() {
	if wasSet {
		_ = os.Setenv(variable, before)
		return
	}
	_ = os.Unsetenv(variable)
}
