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
}

func newRegistry() *registry {
	return &registry{counts: map[policy.BoxID]int{}, byID: map[string]*session{}}
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

// add makes a session known until it is forgotten. Its room is given back when its command has ended, too.
func (r *registry) add(s *session, leave func()) {
	s.forget = sync.OnceFunc(func() {
		r.mu.Lock()
		delete(r.byID, s.id)
		r.mu.Unlock()
		go func() {
			<-s.over
			leave()
		}()
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[s.id] = s
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
