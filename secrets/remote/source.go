package remote

import (
	"context"
	"time"

	"boxgate/policy/name"
)

// Source is a source that is fetched over the network. Its fields are its section in the configuration.
type Source interface {
	// Validate reports problems with the form of the configuration.
	Validate(fail Fail)
	// Needs returns the names of the secrets that the source needs, such as a private key.
	Needs() []string
	// Place describes the origin of the value for the log, without the value or text from a server.
	Place() string
	// Fetch requests a value.
	Fetch(ctx context.Context, d Env) (Value, error)
}

// Forgetter is a [Source] with state derived from the secrets that it needs, such as a session.
type Forgetter interface {
	// Forget is called when the value, or one of those secrets, is dropped: the state must not be used again. It must
	// not block.
	Forget()
}

// Fail reports a problem of the configuration at a key.
type Fail func(key, format string, args ...any)

// Value is the result of a source.
type Value struct {
	Secret name.Secret
	// Lifetime is how long the value may be used, counted from the start of the request. 0: unknown.
	Lifetime time.Duration
}

// Env is the environment of a source.
type Env struct {
	Name   string // of the secret
	Client *Client
	// Secret returns another secret, one of [Source.Needs].
	Secret func(ctx context.Context, name string) (name.Secret, error)
	// Now is the wall clock.
	Now func() time.Time
	// Memory survives restarts of the gateway.
	Memory Memory
}

// Memory keeps state that a source needs after a restart, such as a refresh token that replaced the configured one. It
// is sealed on disk. Safe for concurrent use.
type Memory interface {
	// Remembered returns the text last stored for a secret, initially the zero value.
	Remembered(secret string) (name.Secret, error)
	// Remember stores a text for a secret. It is durable when Remember returns.
	Remember(secret string, text name.Secret) error
}

// TimeLeft returns the time until expires, by the clock of the server that issued the value. That is the Date header if
// present, so that a wrong local clock does not matter.
func TimeLeft(expires time.Time, a Answer, now time.Time) time.Duration {
	if !a.Date.IsZero() {
		now = a.Date
	}
	return expires.Sub(now)
}
