package api

import "time"

// SecretStatus is the state of a secret of the configuration, without its value.
type SecretStatus struct {
	Name    string
	Source  string    // its kind and place, such as "file /etc/boxgate/openai.key"
	Valid   bool      // there is a value that may be used, or the next use reads it
	Stale   bool      // its time has passed without a use: the next use reads it
	Read    time.Time // when its source last gave a value; zero: never
	Expires time.Time // when the source says that it ends; zero: it does not say
	Error   string    // why the source gave none at the last attempt; "" if it did
}
