// Package h2connect switches on extended CONNECT (RFC 8441) in golang.org/x/net/http2, which reads that setting from the
// environment while it is initialised and knows no other way.
//
// It works by order: packages are initialised sorted by import path as soon as what they import is ready (Go
// specification, "Program initialization"), so this one, which imports next to nothing, comes before http2. Whoever
// imports both calls [Restore] from its own init, so that no child process inherits the setting. A test of package proxy
// makes an extended CONNECT and fails if the order ever changes.
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

// Restore puts the environment back to what it was when the program started.
func Restore() {
	if had {
		_ = os.Setenv(variable, before)
		return
	}
	_ = os.Unsetenv(variable)
}
