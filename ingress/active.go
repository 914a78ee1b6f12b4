package ingress

import (
	"context"
	"errors"
	"sync"
)

// errCut is the cause when a request is cut because its URL, credential or box has gone.
var errCut = errors.New("the public URL was revoked")

// active tracks the requests that have passed authentication, so that they can be cut. The zero value is ready to use.
type active struct {
	mu   sync.Mutex
	open map[*request]struct{}
}

// request is one authenticated request or WebSocket.
type request struct {
	of     *active
	target Target
	cut    func()        // makes it end soon; may be called more than once, and after it has ended
	done   chan struct{} // closed when it has ended
}

// begin registers a request. cut is called, from another goroutine, when its URL, credential or box has gone; it must not
// block. end must be called when the request is over.
func (a *active) begin(t Target, cut func()) *request {
	r := &request{of: a, target: t, cut: cut, done: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = make(map[*request]struct{})
	}
	a.open[r] = struct{}{}
	return r
}

// end says that the request is over.
func (r *request) end() {
	r.of.mu.Lock()
	delete(r.of.open, r)
	r.of.mu.Unlock()
	close(r.done)
}

// cut ends every request whose target matches and waits until they are gone.
func (a *active) cut(match func(Target) bool) {
	doomed := a.matching(match)
	for _, r := range doomed {
		r.cut()
	}
	for _, r := range doomed {
		<-r.done
	}
}

// drain waits for all requests until ctx ends, then cuts the rest. The error is ctx's if any had to be cut.
func (a *active) drain(ctx context.Context) error {
	all := func(Target) bool { return true }
	for _, r := range a.matching(all) {
		select {
		case <-r.done:
		case <-ctx.Done():
			a.cut(all)
			return ctx.Err()
		}
	}
	return nil
}

func (a *active) matching(match func(Target) bool) []*request {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*request
	for r := range a.open {
		if match(r.target) {
			list = append(list, r)
		}
	}
	return list
}
