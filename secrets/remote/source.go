package remote

import (
	"context"
	"time"

	"boxgate/policy/name"
)

// Source is a source that is asked over the network. Its fields are its section in the configuration.
type Source interface {
	// Validate reports problems of the form of the configuration.
	Validate(fail Fail)
	// Needs are the names of the secrets that the source needs itself, such as a private key.
	Needs() []string
	// Place says where the value comes from, for the log: no value, and nothing from a server.
	Place() string
	// Fetch asks for a value.
	Fetch(ctx context.Context, d Desk) (Value, error)
}

// Forgetter is a [Source] that keeps what it made with the secrets that it needs, such as a session.
type Forgetter interface {
	// Forget is called when the value, or one of those secrets, is given up: nothing that was made before is used again.
	// It must not block.
	Forget()
}

// Fail reports a problem of the configuration at a key.
type Fail func(key, format string, args ...any)

// Value is what a source gave.
type Value struct {
	Secret name.Secret
	// Lifetime is how long it may be used, counted from before it was asked for. 0: the source does not say.
	Lifetime time.Duration
}

// Desk is what a source works with.
type Desk struct {
	Name   string // of the secret
	Client *Client
	// Secret returns another secret, one of [Source.Needs].
	Secret func(ctx context.Context, name string) (name.Secret, error)
	// Now is the wall clock.
	Now func() time.Time
	// Memory outlives restarts of the gateway.
	Memory Memory
}

// Memory keeps what a source must know after a restart, such as a refresh token that replaced the configured one. It is
// sealed on disk. Safe for concurrent use.
type Memory interface {
	// Remembered returns what was last kept for a secret; the zero value if nothing was.
	Remembered(secret string) (name.Secret, error)
	// Remember keeps a text for a secret. It is on disk when it returns.
	Remember(secret string, text name.Secret) error
}

// Left returns how long a value can be used that expires at a time by the clock of the server that issued it. The server's
// clock is that of its Date header if it has one, so that a local clock that is wrong does not matter.
func Left(expires time.Time, a Answer, now time.Time) time.Duration {
	if !a.Date.IsZero() {
		now = a.Date
	}
	return expires.Sub(now)
}
