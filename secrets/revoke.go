package secrets

import (
	"context"
	"errors"
	"slices"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Connections are the connections that carry secrets. Safe for concurrent use.
type Connections interface {
	// UsesSecret reports whether a request in progress was sent with the secret.
	UsesSecret(secret string) bool
	// Revoke cuts the connections with such a request that began before the call.
	Revoke(secret string)
}

// SetHolders sets the connections that carry secrets. A secret in use is refreshed even without new requests, to detect
// when its source no longer has it. SetHolders revokes the secrets that were found to be gone earlier.
func (s *Secrets) SetHolders(h Connections) {
	s.mu.Lock()
	s.holders = h
	s.mu.Unlock()
	for _, e := range s.entries {
		if e.resumeWatching() {
			s.revoked(e.name)
		}
	}
}

// resumeWatching is called when the holders have changed. It reports whether the secret was found to be gone, and
// restarts the timer for its next refresh, which may have been skipped while no connection carried the secret.
func (e *entry) resumeWatching() (gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil && e.flight == nil {
		e.scheduleRefresh()
	}
	return e.gone
}

func (s *Secrets) currentHolders() Connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders
}

// ErrStatic is returned for secrets that cannot be read again.
var ErrStatic = errors.New("it cannot change while the gateway runs; change the configuration, and restart the gateway")

// ErrBusy is returned for secrets that have been revoked repeatedly while their source was being read.
var ErrBusy = errors.New("it is still being read again after its last revocation; try again when that is done")

// maxRereads is how often in a row a revocation may restart a read before [Secrets.Refresh] refuses: requests wait
// until a read ends.
const maxRereads = 2

// Refresh drops the value of a secret and of those derived from it, cuts the connections that carry them, and reads the
// secret again. The old value is not used after the call. A server's request for a pause is respected.
func (s *Secrets) Refresh(ctx context.Context, name string) error {
	if !s.Has(name) {
		return &Error{Secret: name, Err: ErrUnknown}
	}
	e := s.entries[name]
	if e.source.isStatic() {
		return e.wrap(ErrStatic)
	}
	for _, each := range s.entries {
		if (each == e || s.dependsOn(each, name)) && each.isStarving() {
			return e.wrap(ErrBusy)
		}
	}
	e.dropValue()
	s.revoked(name)
	_, err := e.currentValue(ctx)
	return err
}

// isStarving reports whether another revocation could keep requests from ever getting the secret.
func (e *entry) isStarving() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flight != nil && e.flight.rereads >= maxRereads
}

// revoked is called when a value was dropped. It drops the values derived from it too, and cuts the connections that
// carry any of them.
func (s *Secrets) revoked(name string) {
	names := []string{name}
	for other, e := range s.entries {
		if s.dependsOn(e, name) {
			e.dropValue()
			names = append(names, other)
		}
	}
	if h := s.currentHolders(); h != nil {
		for _, n := range names {
			h.Revoke(n)
		}
	}
}

// Derived returns the names of the secrets that are made with a secret, directly or indirectly, sorted.
func (s *Secrets) Derived(n string) (names []string) {
	if s == nil {
		return nil
	}
	for other, e := range s.entries {
		if s.dependsOn(e, n) {
			names = append(names, other)
		}
	}
	slices.Sort(names)
	return names
}

// dependsOn reports whether a secret is derived from another one, directly or indirectly. There are no cycles.
func (s *Secrets) dependsOn(e *entry, name string) bool {
	for _, need := range e.source.needs() {
		if need == name || s.entries[need] != nil && s.dependsOn(s.entries[need], name) {
			return true
		}
	}
	return false
}

// dropValue drops the value and the result of a refresh in progress. The next read skips the delay after a failure,
// unless the server requested a pause.
func (e *entry) dropValue() {
	if f, ok := e.source.Remote.(remote.Forgetter); ok {
		f.Forget()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hasValue, e.value, e.retryAt, e.failures = false, name.Secret{}, e.pausedUntil, 0
	if e.err == nil {
		e.err = e.wrap(errRevoked)
	}
	if e.flight != nil {
		e.flight.stale = true
	}
}

// scheduleRefresh schedules the next read of a secret, for the case that a connection carries it then: until that
// connection ends, there may be no request that triggers a refresh. The caller holds e.mu.
func (e *entry) scheduleRefresh() {
	if e.source.isStatic() {
		return
	}
	at := e.refreshAt
	if e.failures > 0 {
		at = e.retryAt
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer = time.AfterFunc(max(at.elapsed-e.owner.now().elapsed, minRefresh/2), e.refreshIfHeld)
}

// refreshIfHeld reads a secret again if a connection carries it.
func (e *entry) refreshIfHeld() {
	if h := e.owner.currentHolders(); h == nil || !h.UsesSecret(e.name) {
		return // the next request refreshes it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flight == nil {
		e.startRefresh()
	}
}
