package session

import (
	"maps"
	"slices"
	"sync"

	"boxgate/api"
	"boxgate/policy"
)

// How many sessions there may be at once: in a box, and of all keys that are not admin keys. The operator's are bounded by box alone.
const (
	maxPerBox = 32
	maxOthers = 1024
)

// registry counts the sessions, and finds those that a client may come back to.
type registry struct {
	mu     sync.Mutex
	counts map[policy.BoxID]int // guarded by mu, as what follows
	total  int
	others int // of them, those of keys that are not admin keys
	byID   map[string]*session
	all    map[*session]bool // that have not given their room back
	closed bool              // there will be no more

	empty chan struct{} // closed once there are none and will be none

	input budget // of the input of all sessions beyond what each may keep
}

func newRegistry() *registry {
	return &registry{
		counts: map[policy.BoxID]int{}, byID: map[string]*session{}, all: map[*session]bool{}, empty: make(chan struct{}),
		input: budget{most: maxInputs},
	}
}

// enter makes room for a session of a caller; leave gives it back.
func (r *registry) enter(caller api.Caller, box policy.BoxID) (leave func(), err error) {
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

// stop lets no more sessions in, and returns those that there are.
func (r *registry) stop() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.total == 0 {
		close(r.empty)
	}
	return slices.Collect(maps.Keys(r.all))
}

// add has a session give its room back once it is forgotten and its command has ended. It fails if there are to be no more sessions.
func (r *registry) add(s *session, leave func()) error {
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
			<-s.over
			r.mu.Lock()
			delete(r.all, s)
			r.mu.Unlock()
			leave()
		}()
	})
	return nil
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
