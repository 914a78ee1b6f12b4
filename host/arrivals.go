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

// arrivalTime is how long a connected client may take to send its first request before the gateway stops.
const arrivalTime = time.Second

// arrivals tracks connections to HTTP servers that have not sent a request yet. A net/http server does not answer them
// after Shutdown, so clients that connected just before a restart would get an error; await gives them time to send their
// request. Safe for concurrent use.
type arrivals struct {
	serving sync.WaitGroup

	mu        sync.Mutex
	listeners []net.Listener
	ending    bool
	open      map[net.Conn]bool
	empty     chan struct{} // closed when open is empty; nil: no waiter
}

type arrivalKey struct{}

// track starts tracking the connections of servers. Call it after all their other fields are set.
func (a *arrivals) track(servers ...*http.Server) {
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

// serve is [http.Server.Serve] for a tracked server.
func (a *arrivals) serve(s *http.Server, ln net.Listener) error {
	if !a.listen(ln) {
		return errors.Join(http.ErrServerClosed, ln.Close())
	}
	defer a.serving.Done()
	return s.Serve(ln)
}

// listen reports false if the servers are about to shut down.
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

// await drains the listeners and waits until every connected client has sent its first request, for arrivalTime at most.
// Call it before shutting down the servers.
func (a *arrivals) await(ctx context.Context) {
	a.mu.Lock()
	a.ending = true
	for _, ln := range a.listeners {
		socket.Drain(ln)
	}
	a.mu.Unlock()
	a.serving.Wait() // afterwards all accepted connections are in open
	a.mu.Lock()
	none := make(chan struct{})
	if a.empty = none; len(a.open) == 0 {
		close(none)
		a.empty = nil
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
	if len(a.open) == 0 && a.empty != nil {
		close(a.empty)
		a.empty = nil
	}
}
