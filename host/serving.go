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
	// acceptValid is how long the last look at the listeners is good for: who may ask needs no key, and each look makes a
	// connection to every listener.
	acceptValid = time.Second
)

// serving are the listeners that the gateway serves, and whether they accept connections. Safe for concurrent use.
type serving struct {
	log    *zap.Logger
	within time.Duration // acceptTime

	mu        sync.Mutex
	listeners []*served
	ended     bool // they are another process's, or nobody's

	looking sync.Mutex // held while the listeners are tried
	looked  time.Time  // when they last were; guarded by looking
}

// served is one of them.
type served struct {
	name string
	ln   *acceptor.Listener
	in   *apart.Net // the namespace that it is in
	held func() (connections, most int)

	failed error // why it did not accept when it was last tried; guarded by looking
}

// add makes a listener known, which is about to be served, by the name of what it serves. It is in a namespace; held returns how
// many of its connections are open, and how many there may be; 0: there is no limit for all together.
func (s *serving) add(name string, ln *acceptor.Listener, in *apart.Net, held func() (connections, most int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, &served{name: name, ln: ln, in: in, held: held})
}

// tryable returns a listener that can be tried, and drained.
func tryable(ln net.Listener) *acceptor.Listener { return acceptor.New(socket.NewQueue(ln)) }

// end notes that this process is about to accept nothing more: connections to the listeners are another process's, or refused.
func (s *serving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// errNotServing is a gateway that stops, or that another process has replaced.
var errNotServing = errors.New("the gateway is stopping")

// all returns the listeners, and whether they are served.
func (s *serving) all() (list []*served, serves bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[:len(s.listeners):len(s.listeners)], !s.ended
}

// lookLocked tries all listeners, unless that was done just now, and returns an error for each that does not accept. The caller must
// hold looking.
func (s *serving) lookLocked(ctx context.Context) error {
	all, serves := s.all()
	if !serves {
		return errNotServing
	}
	if time.Since(s.looked) >= acceptValid {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within) // the result is also for those who ask next
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

// try tries one listener, and logs a change of its state.
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
	_ = s.lookLocked(ctx) // each listener has its own result
	all, serves := s.all()
	for _, one := range all {
		connections, most := one.held()
		states = append(states, api.ListenerState{
			Name: one.name, Address: one.ln.Addr().String(), Accepts: serves && one.failed == nil, Connections: connections, Limit: most,
		})
	}
	return states
}
