package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/apart"
	"boxgate/internal/acceptor"
	"boxgate/internal/socket"
)

const (
	// acceptTime is how long a listener may take to accept a connection before it counts as one that does not.
	acceptTime = 3 * time.Second
	// acceptValid is how long a result is cached: readyz needs no key, and each check makes a connection to every listener.
	acceptValid = time.Second
)

// serving checks that the listeners of the gateway accept connections. Safe for concurrent use.
type serving struct {
	log    *zap.Logger
	within time.Duration // acceptTime

	mu        sync.Mutex
	listeners []*served
	ended     bool // this process stops accepting, or has stopped

	looking sync.Mutex // held during a check
	looked  time.Time  // the end of the last check; guarded by looking
}

// served is one listener.
type served struct {
	name string
	ln   *acceptor.Listener
	in   *apart.Net // its network namespace; nil: the gateway's own
	held func() (connections, most int)

	failed error // of the last check; guarded by looking
}

// add registers a listener that is about to be served. held returns how many of its connections are open, and their limit (0: none).
func (s *serving) add(name string, ln *acceptor.Listener, in *apart.Net, held func() (connections, most int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, &served{name: name, ln: ln, in: in, held: held})
}

// tryable wraps a listener so that it can be tried and drained.
func tryable(ln net.Listener) *acceptor.Listener { return acceptor.New(socket.NewQueue(ln)) }

// end stops the checks. Call it before this process stops accepting: from then on connections to the listeners reach another process,
// or are refused.
func (s *serving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// errNotServing is the result of a check after [serving.end].
var errNotServing = errors.New("the gateway is stopping")

// all returns the listeners, and whether this process still serves them.
func (s *serving) all() (list []*served, serves bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[:len(s.listeners):len(s.listeners)], !s.ended
}

// lookLocked tries all listeners, unless the last result is still valid, and returns an error for each that does not accept. The
// caller must hold looking.
func (s *serving) lookLocked(ctx context.Context) error {
	all, serves := s.all()
	if !serves {
		return errNotServing
	}
	if time.Since(s.looked) >= acceptValid {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within) // the result is cached for other callers
		defer cancel()
		var trying sync.WaitGroup
		for _, one := range all {
			trying.Go(func() { s.try(ctx, one) })
		}
		trying.Wait()
		s.looked = time.Now()
	}
	var failed []error
	for _, one := range all {
		if one.failed != nil {
			failed = append(failed, fmt.Errorf("%s at %v: %w", one.name, one.ln.Addr(), one.failed))
		}
	}
	return errors.Join(failed...)
}

// try tries one listener and logs a change of its state.
func (s *serving) try(ctx context.Context, one *served) {
	before := one.failed
	one.failed = one.in.Do(func() error { return one.ln.Try(ctx) })
	at := []zap.Field{zap.String("listener", one.name), zap.Stringer("address", one.ln.Addr()), zap.Error(one.failed)}
	switch _, serves := s.all(); {
	case serves && before == nil && one.failed != nil:
		s.log.Error("a listener does not accept connections", at...)
	case before != nil && one.failed == nil:
		s.log.Info("the listener accepts connections again", at...)
	}
}

// check returns an error that names every listener that does not accept connections.
func (s *serving) check(ctx context.Context) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	return s.lookLocked(ctx)
}

// states returns the state of every listener.
func (s *serving) states(ctx context.Context) (states []api.ListenerState) {
	s.looking.Lock()
	defer s.looking.Unlock()
	_ = s.lookLocked(ctx) // the result of each listener is in failed
	all, serves := s.all()
	for _, one := range all {
		connections, most := one.held()
		states = append(states, api.ListenerState{
			Name: one.name, Address: one.ln.Addr().String(), Accepts: serves && one.failed == nil, Connections: connections, Limit: most,
		})
	}
	return states
}
