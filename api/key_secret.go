package api

import (
	"time"

	"boxgate/policy/name"
)

// KeySecret is a secret that an API key has stored for its header rules, without the value.
type KeySecret struct {
	ID        string // of the key and the name
	Key       string // ID of the API key
	Name      string
	Hosts     []string // patterns of the hosts that it may be sent to; empty: the hosts of the rules that name it
	Metadata  map[string]string
	Version   uint64 // 1, and one more with each new value
	CreatedAt time.Time
	UpdatedAt time.Time
}

// SeesKeySecret reports whether the key may see a secret of an API key, without its value: its own; admin and read-only keys see all.
func (c Caller) SeesKeySecret(s KeySecret) bool {
	return c.OwnsKeySecret(s) || c.Role == RoleAdmin || c.Role == RoleReader
}

// OwnsKeySecret reports whether the key has stored the secret, and so may use it in header rules and replace its value.
func (c Caller) OwnsKeySecret(s KeySecret) bool {
	return c.Key != "" && c.Key == s.Key
}

// KeySecretChange is a new value of a secret of an API key. Members that are nil stay as they were.
type KeySecretChange struct {
	Value    name.Secret
	Hosts    *[]string // empty: the hosts of the rules
	Metadata map[string]string
}
