package api

import "time"

// SecretStatus is the state of a secret of the configuration, without its value.
type SecretStatus struct {
	Name    string
	Source  string    // its kind and place, such as "file /etc/boxgate/openai.key"
	Valid   bool      // there is a value that may be used
	Read    time.Time // when its source last gave a value; zero: never
	Expires time.Time // when that may no longer be used; zero: it does not expire
	Error   string    // why the source gave none at the last attempt; "" if it did
}
