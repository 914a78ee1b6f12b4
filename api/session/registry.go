package session

import (
	"maps"
	"slices"
	"sync"

	"boxgate/api"
	"boxgate/policy"
)

// Limits on concurrent sessions: per box, and for all keys that are not admin keys. Sessions of admin keys are limited
// per box only.
const (
	maxPerBox = 32
	maxOthers = 1024
)

// registry counts sessions and finds a session for a client that reconnects.
type registry struct {
	mu     sync.Mutex
	counts map[policy.BoxID]int // guarded by mu, as are the fields below
	total  int
	others int // sessions of keys that are not admin keys
	byID   map[string]*session
	all    map[*session]bool // sessions that still occupy a slot
	closed bool              // new sessions are refused

	empty chan struct{} // closed once closed is set and the last session is gone

	input budget // for input of all sessions beyond maxUnread each
}

func newRegistry() *registry {
	return &registry{
		counts: map[policy.BoxID]int{}, byID: map[string]*session{}, all: map[*session]bool{}, empty: make(chan struct{}),
		input: budget{limit: maxInputs},
	}
}

// acquireSlot takes a slot for a session of the caller, until release is called.
func (r *registry) acquireSlot(caller api.Caller, box policy.BoxID) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errStopping
	}
	if r.counts[box] >= maxPerBox {
		return nil, api.Errorf(api.ErrLimit, "box %s has %d sessions open, which is the limit; close some", box, maxPerBox)
	}
	operator := caller.Holder().Operator
	if r.others >= maxOthers && !operator {
		return nil, api.Errorf(api.ErrLimit, "%d sessions are open, which is the limit for keys that are not admin keys; close some", maxOthers)
	}
	r.counts[box]++
	r.total++
	if !operator {
		r.others++
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if !operator {
			r.others--
		}
		if r.counts[box]--; r.counts[box] == 0 {
			delete(r.counts, box)
		}
		if r.closed && r.total == 0 {
			close(r.empty)
		}
	}), nil
}

// stop refuses new sessions and returns the existing ones.
func (r *registry) stop() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.total == 0 {
		close(r.empty)
	}
	return slices.Collect(maps.Keys(r.all))
}

// add makes the session release its slot once it is forgotten and its command has ended. It fails after stop.
func (r *registry) add(s *session, release func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errStopping
	}
	r.all[s] = true
	s.forget = sync.OnceFunc(func() {
		r.mu.Lock()
		s.forgotten = true
		delete(r.byID, s.id)
		r.mu.Unlock()
		go func() {
			<-s.done
			r.mu.Lock()
			delete(r.all, s)
			r.mu.Unlock()
			release()
		}()
	})
	return nil
}

// publish makes the session findable by its ID, unless it was already forgotten.
func (r *registry) publish(s *session, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.id = id
	if !s.forgotten {
		r.byID[id] = s
	}
}

// find returns the session of the box with that ID, or nil.
func (r *registry) find(box policy.BoxID, id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.byID[id]; s != nil && s.box == box {
		return s
	}
	return nil
}
