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
	open *request // the first of a list
}

// request is one authenticated request or WebSocket. When it has ended it can be used for another.
type request struct {
	of *active

	// Guarded by of.mu.
	target         Target
	cut            func()        // makes it end soon; may be called more than once, and after it has ended
	ended          chan struct{} // closed at its end, if anybody waits for that; else nil
	next, previous *request
}

// doomed is a request that is cut or waited for.
type doomed struct {
	cut   func()
	ended <-chan struct{}
}

// begin registers a request. cut is called, from another goroutine, when its URL, credential or box has gone; it must not
// block. [request.end] must be called when the request is over, and not before another begin.
func (a *active) begin(r *request, t Target, cut func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*r = request{of: a, target: t, cut: cut, next: a.open}
	if r.next != nil {
		r.next.previous = r
	}
	a.open = r
}

// end says that the request is over.
func (r *request) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.next != nil {
		r.next.previous = r.previous
	}
	if r.previous != nil {
		r.previous.next = r.next
	} else {
		r.of.open = r.next
	}
	if r.ended != nil {
		close(r.ended)
	}
	*r = request{}
}

// cut ends every request whose target matches and waits until they are gone.
func (a *active) cut(match func(Target) bool) {
	all := a.matching(match)
	for _, d := range all {
		d.cut()
	}
	for _, d := range all {
		<-d.ended
	}
}

// drain waits for all requests until ctx ends, then cuts the rest. The error is ctx's if any had to be cut.
func (a *active) drain(ctx context.Context) error {
	all := func(Target) bool { return true }
	for _, d := range a.matching(all) {
		select {
		case <-d.ended:
		case <-ctx.Done():
			a.cut(all)
			return ctx.Err()
		}
	}
	return nil
}

func (a *active) matching(match func(Target) bool) (list []doomed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := a.open; r != nil; r = r.next {
		if !match(r.target) {
			continue
		}
		if r.ended == nil {
			r.ended = make(chan struct{})
		}
		list = append(list, doomed{r.cut, r.ended})
	}
	return list
}
