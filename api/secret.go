package api

import "time"

// SecretStatus is the state of a configured secret, without its value.
type SecretStatus struct {
	Name    string
	Source  string    // its kind and place, such as "file /etc/boxgate/openai.key"
	Valid   bool      // a usable value is cached, or the next use reads it
	Stale   bool      // expired without a use: the next use reads it
	Read    time.Time // last successful read of the source; zero: never
	Expires time.Time // expiry reported by the source, or zero
	Error   string    // why the last read failed; "" if it succeeded
}
