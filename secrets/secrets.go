package secrets

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
)

// Error says that a secret is unavailable, and why. It contains nothing of the value or of what a command wrote.
type Error struct {
	Secret string // its name; not in the text, because the caller knows it
	Source string // such as "file /etc/boxgate/openai.key"; "" if there is none
	Err    error
}

// Error names the source and the cause.
func (e *Error) Error() string {
	if e.Source == "" {
		return e.Err.Error()
	}
	return e.Source + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrUnknown is the cause when the configuration has no secret of that name.
var ErrUnknown = errors.New("the configuration has no secret of this name")

// Options configure how secrets are opened. The zero value is valid.
type Options struct {
	Log *zap.Logger // for when a source begins to fail and when it works again; nil: nothing is logged
}

// Secrets are the operator's secrets. A nil Secrets knows none. Safe for concurrent use.
type Secrets struct {
	log     *zap.Logger
	entries map[string]*entry
	counts  counts

	base   context.Context // of every refresh
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	flights sync.WaitGroup // the current refreshes; Add under mu and only while not closed
}

// Open takes ownership of the sources, by name, and starts reading each of them. It does not wait: a failure is logged,
// and fails the requests that need the secret. Variables are read here and removed from the environment of this
// process, so that child processes do not inherit them. The error says what is wrong with the form of the sources.
func Open(sources map[string]Source, o Options) (*Secrets, error) {
	s := &Secrets{log: o.Log, entries: map[string]*entry{}}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if err := Validate(sources); err != nil {
		return nil, err
	}
	s.base, s.cancel = context.WithCancel(context.Background())
	for name, source := range sources {
		source.Command = slices.Clone(source.Command)
		s.entries[name] = &entry{name: name, source: source, load: loader(source), owner: s}
	}
	for _, source := range sources {
		if source.Env != "" {
			_ = os.Unsetenv(source.Env)
		}
	}
	s.counts = newCounts(slices.Sorted(maps.Keys(sources)))
	for _, e := range s.entries {
		e.start()
	}
	return s, nil
}

// start begins the first refresh.
func (e *entry) start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin(time.Now())
}

// Secret returns the current value of a secret. It does not wait for a refresh while the old value is still valid. It
// fails with an *[Error] if there is no valid value and the source has none, or if ctx ends first.
func (s *Secrets) Secret(ctx context.Context, name string) (policy.Secret, error) {
	if !s.Has(name) {
		return policy.Secret{}, &Error{Secret: name, Err: ErrUnknown}
	}
	return s.entries[name].get(ctx)
}

// Has reports whether there is a secret of that name, whether or not its value is available.
func (s *Secrets) Has(name string) bool { return s != nil && s.entries[name] != nil }

// Close stops every refresh and kills running commands. After that, no secret is available.
func (s *Secrets) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.flights.Wait()
}

// fly runs a refresh, unless the secrets are closed.
func (s *Secrets) fly(refresh func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.flights.Go(refresh)
	return true
}

// loader returns the function that reads a source.
func loader(s Source) func(context.Context, policy.Secret) (policy.Secret, string, error) {
	switch {
	case s.File != "":
		return func(ctx context.Context, _ policy.Secret) (policy.Secret, string, error) {
			v, err := readFile(ctx, s.File)
			return v, "", err
		}
	case len(s.Command) > 0:
		return func(ctx context.Context, known policy.Secret) (policy.Secret, string, error) {
			return runCommand(ctx, s.Command, known)
		}
	case s.Env != "":
		v, err := readVariable(s.Env)
		return func(context.Context, policy.Secret) (policy.Secret, string, error) { return v, "", err }
	default:
		return func(context.Context, policy.Secret) (policy.Secret, string, error) { return s.Value, "", nil }
	}
}

func readVariable(name string) (policy.Secret, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return policy.Secret{}, errors.New("it is not set in the gateway's environment")
	}
	return checked(v)
}
