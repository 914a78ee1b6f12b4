package secrets

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Error reports that a secret is unavailable, and why. It contains no part of the value, of a command's output or of a
// server's answer.
type Error struct {
	Secret string // its name; not in the text, because the caller knows it
	Source string // such as "file /etc/boxgate/openai.key"; may be ""
	Err    error
}

// Error returns the source and the cause.
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
	Log    *zap.Logger    // logs when a source begins to fail and when it works again; nil: no log
	Roots  *x509.CertPool // trusted for the servers of remote sources; nil: the system's
	Memory remote.Memory  // for sources with state that survives restarts; nil: these sources fail
}

// Secrets are the operator's secrets. A nil Secrets is empty. Safe for concurrent use.
type Secrets struct {
	log     *zap.Logger
	entries map[string]*entry
	counts  counts
	client  *remote.Client
	memory  remote.Memory
	now     func() moment

	base   context.Context // parent of every refresh
	cancel context.CancelFunc

	mu      sync.Mutex
	holders Connections
	closed  bool
	resting bool           // closed, but values stay available until they expire
	flights sync.WaitGroup // the running refreshes; Add under mu and only while not closed
}

// Open takes ownership of the sources, by name, and starts reading each of them. It does not wait: a failure is logged,
// and fails the requests that need the secret. Variables are read immediately and removed from the environment of this
// process, so that child processes do not inherit them. Open fails if a source is malformed.
func Open(sources map[string]Source, o Options) (*Secrets, error) {
	s := &Secrets{log: o.Log, entries: map[string]*entry{}, client: remote.NewClient(o.Roots), memory: o.Memory, now: clock()}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.memory == nil {
		s.memory = noMemory{}
	}
	if err := Validate(sources); err != nil {
		return nil, err
	}
	s.base, s.cancel = context.WithCancel(context.Background())
	for name, source := range withDocuments(sources) {
		source.Command = slices.Clone(source.Command)
		s.entries[name] = &entry{name: name, source: source, load: s.loader(name, source), owner: s}
	}
	for _, source := range sources {
		if source.Env != "" {
			_ = os.Unsetenv(source.Env)
		}
	}
	s.counts = newCounts(slices.Sorted(maps.Keys(sources)))
	for _, e := range s.entries {
		e.startFirst()
	}
	return s, nil
}

// startFirst begins the first refresh.
func (e *entry) startFirst() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startRefresh()
}

// Secret returns the current value of a secret. It does not wait for a refresh while the old value is valid. It fails
// with an *[Error] if there is no valid value and reading the source fails, or if ctx ends first.
func (s *Secrets) Secret(ctx context.Context, n string) (name.Secret, error) {
	if !s.Has(n) {
		return name.Secret{}, &Error{Secret: n, Err: ErrUnknown}
	}
	return s.entries[n].currentValue(ctx)
}

// Has reports whether the secret is configured, even if its value is unavailable.
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

// StopRefreshing waits for the running refreshes and starts no more. Values stay available until they expire. Another process may
// then refresh the same sources.
func (s *Secrets) StopRefreshing() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed, s.resting = true, true
	s.mu.Unlock()
	s.flights.Wait()
}

// Forget drops the value of a secret. After StopRefreshing, it is not read again.
func (s *Secrets) Forget(n string) {
	if !s.Has(n) {
		return
	}
	e := s.entries[n]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hasValue, e.value, e.err = false, name.Secret{}, e.wrap(errStopping)
}

// isResting reports whether StopRefreshing was called: values stay available without refreshes.
func (s *Secrets) isResting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resting
}

// goRefresh runs a refresh, unless the secrets are closed.
func (s *Secrets) goRefresh(refresh func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.flights.Go(refresh)
	return true
}

// readResult is the result of reading a source.
type readResult struct {
	value    name.Secret
	lifetime time.Duration // given by the source; 0: unknown
	output   string        // for the log: a command's standard error or a server's answer, masked
}

// loader returns the function that reads a source. The function's second argument is the last value, to be masked in
// texts from the source.
func (s *Secrets) loader(n string, from Source) func(context.Context, name.Secret) (readResult, error) {
	switch path := from.path(); {
	case path != "":
		return func(ctx context.Context, _ name.Secret) (readResult, error) {
			v, err := awaitFile(ctx, path, from.form(), missingTime)
			if errors.Is(err, fs.ErrNotExist) {
				err = goneError{err}
			}
			return readResult{value: v}, err
		}
	case len(from.Command) > 0:
		return func(ctx context.Context, known name.Secret) (readResult, error) {
			v, output, err := runCommand(ctx, from.Command, known, from.form())
			return readResult{value: v, output: output}, err
		}
	case from.Remote != nil:
		return s.remoteLoader(n, from)
	case from.Env != "":
		v, err := readVariable(from.Env, from.form())
		return func(context.Context, name.Secret) (readResult, error) { return readResult{value: v}, err }
	case from.Credential != "":
		return func(context.Context, name.Secret) (readResult, error) { return readResult{}, errNoCredentials }
	default:
		return func(context.Context, name.Secret) (readResult, error) { return readResult{value: from.Value}, nil }
	}
}

// remoteLoader returns the function that reads a remote source.
func (s *Secrets) remoteLoader(n string, from Source) func(context.Context, name.Secret) (readResult, error) {
	env := remote.Env{
		Name: n, Client: s.client, Memory: s.memory, Secret: s.neededSecret, Now: func() time.Time { return s.now().wall },
	}
	return func(ctx context.Context, known name.Secret) (readResult, error) {
		env := env
		env.Client = s.client.WithHidden(known)
		v, err := from.Remote.Fetch(ctx, env)
		if err != nil {
			refused, ok := errors.AsType[*remote.Error](err)
			if ok {
				return readResult{output: refused.ServerText}, err
			}
			return readResult{}, err
		}
		value, err := from.form().checked(v.Secret.Reveal())
		return readResult{value: value, lifetime: v.Lifetime}, err
	}
}

// neededSecret returns a secret that another one is derived from.
func (s *Secrets) neededSecret(ctx context.Context, n string) (name.Secret, error) {
	v, err := s.Secret(ctx, n)
	if err != nil {
		return name.Secret{}, fmt.Errorf("it needs secret %q: %w", n, err)
	}
	return v, nil
}

func readVariable(n string, f form) (name.Secret, error) {
	v, ok := os.LookupEnv(n)
	if !ok {
		return name.Secret{}, errors.New("it is not set in the gateway's environment")
	}
	return f.checked(v)
}

// goneError is the error of a source that no longer has the secret.
type goneError struct{ error }

// Is makes it match [remote.ErrGone].
func (goneError) Is(target error) bool { return target == remote.ErrGone }

// Unwrap returns the cause.
func (g goneError) Unwrap() error { return g.error }

// noMemory is the memory if Options.Memory is nil.
type noMemory struct{}

var errNoMemory = errors.New("there is no store")

// Remembered implements [remote.Memory].
func (noMemory) Remembered(string) (name.Secret, error) { return name.Secret{}, errNoMemory }

// Remember implements [remote.Memory].
func (noMemory) Remember(string, name.Secret) error { return errNoMemory }

// Status is the state of one secret, without its value.
type Status struct {
	Name   string
	Source string    // such as "file /etc/boxgate/openai.key"
	Valid  bool      // there is a usable value, or the next use reads it
	Read   time.Time // when the source was last read for it; zero: never successfully
	// Expires is when the value expires according to its source; zero: unknown, or Stale.
	Expires time.Time
	// Stale is set if the value expired without a use since: the next use reads the source.
	Stale bool
	Err   error // of the last refresh; nil if it succeeded
}

// Status returns the state of every secret, sorted by name.
func (s *Secrets) Status() []Status {
	if s == nil {
		return nil
	}
	var out []Status
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		out = append(out, s.entries[name].status())
	}
	return out
}

func (e *entry) status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Status{Name: e.name, Source: e.source.String(), Valid: e.valid(e.owner.now()), Read: e.readAt.wall, Err: e.err}
	st.Stale = !st.Valid && e.err == nil && !e.readAt.wall.IsZero()
	if st.Valid = st.Valid || st.Stale; !st.Stale {
		st.Expires = e.sourceExpiry
	}
	return st
}

// counts are the metrics of the secrets. Their only label is a name from the configuration, so their number is bounded.
type counts struct{ refreshes, failures *prometheus.CounterVec }

func newCounts(names []string) counts {
	c := counts{
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_secret_refreshes_total", Help: "How often the source of a secret was read.",
		}, []string{"secret"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_secret_refresh_failures_total", Help: "How often reading the source of a secret failed.",
		}, []string{"secret"}),
	}
	for _, n := range names { // so that rate() sees the first failure
		c.refreshes.WithLabelValues(n)
		c.failures.WithLabelValues(n)
	}
	return c
}

// The times of each secret, in seconds since 1970.
var (
	readTime = prometheus.NewDesc("boxgate_secret_read_timestamp_seconds",
		"When the source of a secret was last read successfully.", []string{"secret"}, nil)
	expiryTime = prometheus.NewDesc("boxgate_secret_expiry_timestamp_seconds",
		"When the value of a secret expires, if its source sets an expiry.", []string{"secret"}, nil)
)

// Describe implements [prometheus.Collector].
func (s *Secrets) Describe(ch chan<- *prometheus.Desc) {
	ch <- readTime
	ch <- expiryTime
	s.counts.refreshes.Describe(ch)
	s.counts.failures.Describe(ch)
}

// Collect implements [prometheus.Collector]: register the Secrets themselves.
func (s *Secrets) Collect(ch chan<- prometheus.Metric) {
	s.counts.refreshes.Collect(ch)
	s.counts.failures.Collect(ch)
	for _, st := range s.Status() {
		for desc, at := range map[*prometheus.Desc]time.Time{readTime: st.Read, expiryTime: st.Expires} {
			if !at.IsZero() {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(at.UnixMilli())/1000, st.Name)
			}
		}
	}
}

// report counts a refresh, and logs it if the source has begun to fail or works again. output contains a command's
// standard error or a server's answer, masked. valid reports whether the old value may still be used.
func (s *Secrets) report(e *entry, err error, output string, failedBefore, valid bool) {
	s.counts.refreshes.WithLabelValues(e.name).Inc()
	if err == nil {
		if failedBefore {
			s.log.Info("the source of a secret works again", zap.String("secret", e.name))
		}
		return
	}
	s.counts.failures.WithLabelValues(e.name).Inc()
	if s.base.Err() != nil || !e.shouldLog(err) {
		return
	}
	fields := []zap.Field{zap.String("secret", e.name), zap.Error(err), zap.Bool("last_value_still_valid", valid)}
	if output != "" {
		key := "stderr"
		if e.source.Remote != nil {
			key = "answer"
		}
		fields = append(fields, zap.String(key, output))
	}
	s.log.Warn("a secret could not be refreshed", fields...)
}
