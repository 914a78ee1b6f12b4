package shared

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/watch"
)

// Apply makes the objects of a kind, values by ID, the ones in force on this host, in one step: requests see either the earlier ones or
// these. It is called again with the same objects after an error. It must not change the map.
type Apply func(objects map[string][]byte) error

// Mirror applies shared objects to the tables of this host, as the fleet changes them. Safe for concurrent use.
type Mirror struct {
	keys  fleet.Keys
	kinds []Kind
	log   *zap.Logger

	applying sync.Mutex // held while a state is applied
	objects  map[Kind]map[string][]byte
	apply    map[Kind]Apply
	due      map[Kind]bool // not applied yet
	revision int64         // of objects; 0: no listing yet

	mu      sync.Mutex    // never held while a state is applied, which may take seconds: every request of the API looks at current
	current bool          // the last attempt to apply has succeeded for all kinds
	touched int64         // the revision of the last change of a kind, or of the last listing
	applied int64         // the revision up to which all kinds are applied
	changed chan struct{} // closed and replaced when applied changes
	counts  map[Kind]int  // of objects
	pending int           // number of kinds that are due
}

// NewMirror returns a mirror of all [Kinds], without objects.
func NewMirror(keys fleet.Keys, log *zap.Logger) *Mirror { return newMirror(keys, Kinds, log) }

func newMirror(keys fleet.Keys, kinds []Kind, log *zap.Logger) *Mirror {
	m := &Mirror{keys: keys, kinds: kinds, log: log, objects: map[Kind]map[string][]byte{}, due: map[Kind]bool{}, changed: make(chan struct{})}
	for _, kind := range kinds {
		m.objects[kind], m.due[kind] = map[string][]byte{}, true
	}
	m.count()
	return m
}

// Attach sets how each of [Kinds] is applied, and applies the known objects. A kind without an entry cannot be applied: the host stays
// fenced.
func (m *Mirror) Attach(apply map[Kind]Apply) {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.apply = apply
	m.mu.Lock()
	m.applied, m.current = 0, false
	m.mu.Unlock()
	m.applyLocked()
}

// Follow takes a change of the watched prefix, and applies it.
func (m *Mirror) Follow(c watch.Change) {
	m.applying.Lock()
	defer m.applying.Unlock()
	touched := false
	for _, kind := range m.kinds {
		prefix, changed := prefixOf(m.keys, kind), c.Listed
		for _, e := range c.Set {
			if id, ok := strings.CutPrefix(e.Key, prefix); ok {
				m.objects[kind][id], m.due[kind], changed = e.Value, true, true
			}
		}
		for _, key := range c.Deleted {
			if id, ok := strings.CutPrefix(key, prefix); ok {
				delete(m.objects[kind], id)
				m.due[kind], changed = true, true
			}
		}
		touched = touched || changed
	}
	m.revision = c.Revision
	m.mu.Lock()
	if touched {
		m.touched = c.Revision
	}
	m.count()
	m.mu.Unlock()
	m.applyLocked()
}

// Retry applies the kinds again that could not be applied, instead of at the next interval.
func (m *Mirror) Retry() {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.applyLocked()
}

// applyLocked applies the kinds that are due. One that cannot be applied does not delay the others: a policy that becomes tighter is in force
// although the store has no room for a key. The revision counts as applied with the last kind. The caller holds applying.
func (m *Mirror) applyLocked() {
	if m.revision == 0 {
		return
	}
	failed := false
	for _, kind := range m.kinds {
		if !m.due[kind] || m.apply == nil {
			continue
		}
		if err := m.applyKind(kind); err != nil {
			m.log.Error("shared objects of the fleet could not be applied; this host is fenced until they are", zap.String("kind", string(kind)), zap.Error(err))
			failed = true
			continue
		}
		m.due[kind] = false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count()
	m.current = !failed
	if !failed && m.applied != m.revision {
		m.applied = m.revision
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

func (m *Mirror) applyKind(kind Kind) error {
	apply := m.apply[kind]
	if apply == nil {
		return errors.New("this host cannot apply the kind")
	}
	return apply(m.objects[kind])
}

// Current reports whether all shared objects that this host knows are in force. It is false before the first listing, and stays as it was
// while later ones are applied for the first time. It does not wait for that.
func (m *Mirror) Current() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

// count notes the result of [Mirror.Counts]. The caller holds applying and mu.
func (m *Mirror) count() {
	m.counts, m.pending = map[Kind]int{}, 0
	for _, kind := range m.kinds {
		m.counts[kind] = len(m.objects[kind])
		if m.due[kind] {
			m.pending++
		}
	}
}

// Counts returns the numbers of known objects by kind, which must not be changed, and the number of kinds with objects that are not in force
// on this host. It does not wait while they are applied.
func (m *Mirror) Counts() (objects map[Kind]int, pending int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts, m.pending
}

// state returns the revision up to which all kinds are applied, the last one of them that changed a kind, and a channel that is closed when
// the first changes.
func (m *Mirror) state() (applied, touched int64, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied, min(m.touched, m.applied), m.changed
}

// ErrBehind is the error of a change that was made, but that hosts with a lease have not in force yet.
var ErrBehind = errors.New("the change was made, but hosts have not acknowledged that it is in force")

// Await waits until this host has a revision in force. The error is [ErrBehind] if ctx ends before.
func (m *Mirror) Await(ctx context.Context, revision int64) error {
	for {
		applied, _, changed := m.state()
		if applied >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: this one", ErrBehind)
		}
	}
}

// Intervals of waiting.
const (
	retryEvery = time.Second
	leastPoll  = 20 * time.Millisecond
	mostPoll   = 500 * time.Millisecond
)

// AwaitAll waits until every host that holds a lease has a revision in force, which changed a kind. The error is [ErrBehind], with the hosts, if ctx ends before.
func (m *Mirror) AwaitAll(ctx context.Context, a *Acknowledgements, kind Kind, revision int64) error {
	if err := m.Await(ctx, revision); err != nil {
		return err
	}
	var last []string
	for poll := leastPoll; ; poll = min(2*poll, mostPoll) {
		behind, err := a.Behind(ctx, kind, revision)
		switch {
		case err == nil && len(behind) == 0:
			return nil
		case err == nil:
			last = behind
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return withHosts(ErrBehind, last)
		}
	}
}

// Run tries again to apply objects after an error, and acknowledges the applied ones, until ctx is done. Changes of other kinds, such as the
// directory of hosts, are not acknowledged; each lease has its own acknowledgement.
func (m *Mirror) Run(ctx context.Context, a *Acknowledgements) {
	var acknowledged int64
	var by clientv3.LeaseID
	for {
		_, touched, changed := m.state()
		if lease := a.Lease(); touched != 0 && lease != 0 && (touched != acknowledged || lease != by) {
			call, cancel := context.WithTimeout(ctx, retryEvery)
			if err := a.Put(call, touched); err == nil {
				acknowledged, by = touched, lease
			}
			cancel()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(retryEvery):
			m.Retry()
		}
	}
}
