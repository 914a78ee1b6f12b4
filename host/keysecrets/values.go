// Package keysecrets has the secrets that API keys store by the API: [Values] gives them to requests of boxes, [Service] changes them.
package keysecrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/fault"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/store"
)

// Configured has the secrets of the configuration; implemented by [boxgate/secrets.Secrets].
type Configured interface {
	Secret(ctx context.Context, n string) (name.Secret, error)
	Has(n string) bool
}

// Errors of requests whose rule names a secret without a usable value. They say what to do.
var (
	errGone  = errors.New("the API key has no secret of this name any more; store it again (POST /v2/key-secrets), or change the header rule")
	errEnded = errors.New("the API key that stored it has expired or was revoked; set the header rule with a key that is valid")
)

// Values are the secrets of the configuration and of API keys, for header rules. Each request sees one state of the latter
// ([Values.Snapshot]). Safe for concurrent use.
type Values struct {
	log   *zap.Logger
	store store.KeySecrets
	keys  store.Keys

	changing sync.Mutex // serialises changes
	now      atomic.Pointer[view]
}

// view is the state of the secrets at one time. It does not change.
type view struct {
	configured Configured
	entries    map[string]*entry    // by ID
	ends       map[string]time.Time // of API keys; zero: never
}

// entry is a secret of an API key.
type entry struct {
	store.KeySecret
	hosts []name.Pattern // with ports; nil: the hosts of the rules
}

// Open reads the secrets of API keys, and deletes the secrets of keys that have ended.
func Open(log *zap.Logger, configured Configured, secrets store.KeySecrets, keys store.Keys) (*Values, error) {
	if _, err := secrets.DeleteEnded(); err != nil {
		log.Warn("the secrets of API keys that have ended could not be deleted; they are not used", zap.Error(err))
	}
	all, err := secrets.All()
	if err != nil {
		return nil, fmt.Errorf("the secrets of API keys: %w", err)
	}
	ends, err := keys.KeyEnds()
	if err != nil {
		return nil, fmt.Errorf("the secrets of API keys: %w", err)
	}
	first := &view{configured, map[string]*entry{}, ends}
	for _, s := range all {
		first.entries[s.ID()] = newEntry(s)
	}
	v := &Values{log: log, store: secrets, keys: keys}
	v.now.Store(first)
	return v, nil
}

// newEntry parses the hosts of a secret. A pattern that cannot be parsed covers no host.
func newEntry(s store.KeySecret) *entry {
	e := &entry{KeySecret: s}
	for _, host := range s.Hosts {
		p, _ := name.ParsePattern(host)
		e.hosts = append(e.hosts, p.WithDefaultPort(httpsPort))
	}
	return e
}

// httpsPort is the port of patterns without one, as in header rules.
const httpsPort = 443

// Snapshot implements [exchange.Snapshots].
func (v *Values) Snapshot() exchange.BoundSecrets { return v.now.Load() }

// Secret implements [exchange.Secrets], for the state of now.
func (v *Values) Secret(ctx context.Context, source string) (name.Secret, error) {
	return v.now.Load().Secret(ctx, source)
}

// Secret returns the value of a secret of the configuration, or of an API key by its ID. It fails for a secret that was deleted, or
// whose key has ended.
func (s *view) Secret(ctx context.Context, source string) (name.Secret, error) {
	key, _, ofKey := name.SplitKeySecret(source)
	if !ofKey {
		return s.configured.Secret(ctx, source)
	}
	switch e := s.entries[source]; {
	case !s.isValid(key):
		return name.Secret{}, errEnded
	case e == nil:
		return name.Secret{}, errGone
	default:
		return e.Value, nil
	}
}

// isValid reports whether an API key is valid now.
func (s *view) isValid(key string) bool {
	end, known := s.ends[key]
	return known && (end.IsZero() || fault.Now().Before(end))
}

// Permits implements [exchange.BoundSecrets].
func (s *view) Permits(source string, host name.Name, port uint16) error {
	e := s.entries[source]
	if e == nil || e.hosts == nil {
		return nil
	}
	for _, p := range e.hosts {
		if p.Match(host, port) {
			return nil
		}
	}
	return fmt.Errorf("secret %q may only be sent to %s", source, strings.Join(e.Hosts, ", "))
}

// Find returns the name by which rules for a host pattern refer to a secret that an API key has stored, by its name or ID. found is false
// if the key has none. flaw is why the rule may not use it, "" if it may. A zero pattern is not checked.
func (v *Values) Find(key, n string, host name.Pattern) (source, flaw string, found bool) {
	source = n
	if name.IsSecretName(n) {
		source = name.KeySecret(key, n)
	}
	owner, _, ok := name.SplitKeySecret(source)
	state := v.now.Load()
	e := state.entries[source]
	if !ok || owner != key || e == nil || !state.isValid(key) {
		return n, "", false
	}
	if e.hosts == nil || host.IsZero() {
		return source, "", true
	}
	for _, p := range e.hosts {
		if p.Covers(host.WithDefaultPort(httpsPort)) {
			return source, "", true
		}
	}
	return source, fmt.Sprintf("the secret may only be sent to %s", strings.Join(e.Hosts, ", ")), true
}

// change replaces the state by a changed copy. The caller holds v.changing.
func (v *Values) change(edit func(*view)) {
	old := v.now.Load()
	next := &view{old.configured, maps.Clone(old.entries), old.ends}
	edit(next)
	v.now.Store(next)
}

// Forget drops the value of a secret of an API key, without changing the store: another process has it.
func (v *Values) Forget(id string) {
	v.changing.Lock()
	defer v.changing.Unlock()
	v.change(func(next *view) { delete(next.entries, id) })
}

// dropEnded drops the secrets of API keys that have ended, and returns their IDs. If the keys cannot be read, the given one, which has
// changed, counts as ended.
func (v *Values) dropEnded(changed string) (dropped []string) {
	v.changing.Lock()
	defer v.changing.Unlock()
	ends, err := v.keys.KeyEnds()
	v.change(func(next *view) {
		if next.ends = ends; err != nil {
			v.log.Error("the API keys cannot be read; the secrets of the changed one are not used", zap.Error(err))
			next.ends = maps.Clone(v.now.Load().ends)
			delete(next.ends, changed)
		}
		for id, e := range next.entries {
			if !next.isValid(e.Key) {
				dropped = append(dropped, id)
				delete(next.entries, id)
			}
		}
	})
	return dropped
}
