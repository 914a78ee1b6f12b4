package secrets

import (
	"context"
	"errors"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Holders are the connections that carry secrets. Safe for concurrent use.
type Holders interface {
	// Holds reports whether a request in progress was sent with a secret.
	Holds(secret string) bool
	// Revoke cuts the connections with such a request, begun before the call.
	Revoke(secret string)
}

// SetHolders says where secrets are in use. A secret that is held is refreshed without being asked for, so that it is
// noticed when its source no longer has it. The holders are told which secrets were found to be gone before.
func (s *Secrets) SetHolders(h Holders) {
	s.mu.Lock()
	s.holders = h
	s.mu.Unlock()
	for _, e := range s.entries {
		if e.catchUp() {
			s.revoked(e.name)
		}
	}
}

// catchUp is called when there are other holders: it reports whether the secret was found to be gone, and has it read again in
// time, as that may have been left out while nobody held it.
func (e *entry) catchUp() (gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil && e.flight == nil {
		e.watch()
	}
	return e.gone
}

func (s *Secrets) held() Holders {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders
}

// ErrStatic is returned for secrets that cannot be read again.
var ErrStatic = errors.New("it cannot change while the gateway runs; change the configuration, and restart the gateway")

// ErrBusy is returned for secrets that have been revoked repeatedly while their source was being read.
var ErrBusy = errors.New("it is being read anew since it was last revoked; try again when that is done")

// maxRereads is how often in a row a read may be begun anew because the secret was revoked meanwhile, before [Secrets.Refresh]
// refuses: requests wait until one ends.
const maxRereads = 2

// Refresh gives up the value of a secret, and of those that are made with it, cuts the connections that were opened with
// them, and reads it anew. The value is not used from the call on. A server that asked not to be asked for a while is not.
func (s *Secrets) Refresh(ctx context.Context, name string) error {
	if !s.Has(name) {
		return &Error{Secret: name, Err: ErrUnknown}
	}
	e := s.entries[name]
	if e.source.static() {
		return e.wrap(ErrStatic)
	}
	for _, each := range s.entries {
		if (each == e || s.reaches(each, name)) && each.busy() {
			return e.wrap(ErrBusy)
		}
	}
	e.drop()
	s.revoked(name)
	_, err := e.get(ctx)
	return err
}

// busy reports whether revoking the secret once more would keep requests from ever getting it.
func (e *entry) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flight != nil && e.flight.rereads >= maxRereads
}

// revoked is called when a value was given up: those that are made with it are given up, too, and connections that carry
// any of them cut.
func (s *Secrets) revoked(name string) {
	names := []string{name}
	for other, e := range s.entries {
		if s.reaches(e, name) {
			e.drop()
			names = append(names, other)
		}
	}
	if h := s.held(); h != nil {
		for _, n := range names {
			h.Revoke(n)
		}
	}
}

// reaches reports whether a secret is made with another one, directly or by way of others. There are no cycles.
func (s *Secrets) reaches(e *entry, name string) bool {
	for _, need := range e.source.needs() {
		if need == name || s.entries[need] != nil && s.reaches(s.entries[need], name) {
			return true
		}
	}
	return false
}

// drop gives up the value, and what a refresh in progress has read. The source is read without the delay after a failure,
// unless that is the server's wish.
func (e *entry) drop() {
	if f, ok := e.source.Remote.(remote.Forgetter); ok {
		f.Forget()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.have, e.value, e.retry, e.failures = false, name.Secret{}, e.spared, 0
	if e.err == nil {
		e.err = e.wrap(errRevoked)
	}
	if e.flight != nil {
		e.flight.stale = true
	}
}

// watch reads a secret again in time, if a connection holds it then: no request may ask for it until that ends. The caller
// holds e.mu.
func (e *entry) watch() {
	if e.source.static() {
		return
	}
	at := e.early
	if e.failures > 0 {
		at = e.retry
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer = time.AfterFunc(max(at.elapsed-e.owner.now().elapsed, minRefresh/2), e.again)
}

// again is called when a secret should be read again.
func (e *entry) again() {
	if h := e.owner.held(); h == nil || !h.Holds(e.name) {
		return // the next request notices
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flight == nil {
		e.begin()
	}
}
