package host

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"boxgate/internal/socket"
)

// arrivalTime is how long a client that has connected may take to ask before the gateway stops.
const arrivalTime = time.Second

// arrivals are the connections of HTTP servers over which no request has come to be answered. A server of net/http that is shut down
// answers none of them, though their clients found it listening: who asks while the gateway is restarted would be turned away.
// Safe for concurrent use.
type arrivals struct {
	serving sync.WaitGroup

	mu        sync.Mutex
	listeners []net.Listener
	ending    bool
	open      map[net.Conn]bool
	none      chan struct{} // closed when there is none; nil: nobody waits for that
}

type arrivalKey struct{}

// follow makes servers tell of their connections. Call it once everything else is set.
func (a *arrivals) follow(servers ...*http.Server) {
	for _, s := range servers {
		inner, innerState, handler := s.ConnContext, s.ConnState, s.Handler
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			a.add(c)
			if inner != nil {
				ctx = inner(ctx, c)
			}
			return context.WithValue(ctx, arrivalKey{}, c)
		}
		s.ConnState = func(c net.Conn, state http.ConnState) {
			if innerState != nil {
				innerState(c, state)
			}
			if state == http.StateClosed || state == http.StateHijacked {
				a.remove(c)
			}
		}
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c, ok := r.Context().Value(arrivalKey{}).(net.Conn); ok {
				a.remove(c)
			}
			handler.ServeHTTP(w, r)
		})
	}
}

// serve is [http.Server.Serve] for a server that is followed.
func (a *arrivals) serve(s *http.Server, ln net.Listener) error {
	if !a.listen(ln) {
		return errors.Join(http.ErrServerClosed, ln.Close())
	}
	defer a.serving.Done()
	return s.Serve(ln)
}

// listen reports false if the servers are about to be shut down.
func (a *arrivals) listen(ln net.Listener) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return false
	}
	a.listeners = append(a.listeners, ln)
	a.serving.Add(1)
	return true
}

// await drains the listeners, and waits until those that have connected before have asked, for some time at most. Call it before
// the servers are shut down.
func (a *arrivals) await(ctx context.Context) {
	a.mu.Lock()
	a.ending = true
	for _, ln := range a.listeners {
		socket.Drain(ln)
	}
	a.mu.Unlock()
	a.serving.Wait() // then all that were accepted are known
	a.mu.Lock()
	none := make(chan struct{})
	if a.none = none; len(a.open) == 0 {
		close(none)
		a.none = nil
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, arrivalTime)
	defer cancel()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

func (a *arrivals) add(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[net.Conn]bool{}
	}
	a.open[c] = true
}

func (a *arrivals) remove(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c)
	if len(a.open) == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}
