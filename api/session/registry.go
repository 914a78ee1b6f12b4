package session

import (
	"sync"

	"boxgate/api"
	"boxgate/policy"
)

// How many sessions there may be at once.
const (
	maxPerBox = 32
	maxTotal  = 1024
)

// registry counts the sessions, and finds those that a client may come back to.
type registry struct {
	mu     sync.Mutex
	counts map[policy.BoxID]int // guarded by mu, as what follows
	total  int
	byID   map[string]*session

	input budget // of the input of all sessions beyond what each may keep
}

func newRegistry() *registry {
	return &registry{counts: map[policy.BoxID]int{}, byID: map[string]*session{}, input: budget{most: maxInputs}}
}

// enter makes room for a session; leave gives it back.
func (r *registry) enter(box policy.BoxID) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts[box] >= maxPerBox {
		return nil, api.Errorf(api.ErrLimit, "box %s has %d sessions open, which is the limit; close some", box, maxPerBox)
	}
	if r.total >= maxTotal {
		return nil, api.Errorf(api.ErrLimit, "%d sessions are open, which is the limit; close some", maxTotal)
	}
	r.counts[box]++
	r.total++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if r.counts[box]--; r.counts[box] == 0 {
			delete(r.counts, box)
		}
	}), nil
}

// add has a session give its room back once it is forgotten and its command has ended.
func (r *registry) add(s *session, leave func()) {
	s.forget = sync.OnceFunc(func() {
		r.mu.Lock()
		s.forgotten = true
		delete(r.byID, s.id)
		r.mu.Unlock()
		go func() {
			<-s.over
			leave()
		}()
	})
}

// know makes a session known by its ID until it is forgotten, which it may be already.
func (r *registry) know(s *session, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.id = id
	if !s.forgotten {
		r.byID[id] = s
	}
}

// find returns a session of a box, or nil.
func (r *registry) find(box policy.BoxID, id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.byID[id]; s != nil && s.box == box {
		return s
	}
	return nil
}
