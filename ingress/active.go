package ingress

import (
	"context"
	"errors"
	"sync"
	"time"
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
	by             admission
	expiry         *time.Timer   // nil: what let it in does not end
	cut            func()        // makes it end soon; may be called more than once
	ended          chan struct{} // closed at its end, if anybody waits for that; else nil
	next, previous *request
}

// doomed is a request that is cut or waited for.
type doomed struct {
	found *request
	ended chan struct{}
}

// begin registers a request. cut is called, from another goroutine, when its URL, credential, session or box has gone, or
// the time of its admission is over, but not after its end. It must not block, nor call what is registered here.
// [request.closeWith] must be called when the request is over, before another begin.
func (a *active) begin(r *request, t Target, by admission, cut func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*r = request{of: a, target: t, by: by, cut: cut, next: a.open}
	if r.next != nil {
		r.next.previous = r
	}
	a.open = r
	if !by.until.IsZero() {
		r.expire(time.Until(by.until))
	}
}

// expire cuts the request after a time. The lock of the list is held, then too: in the meantime r may have become another request.
func (r *request) expire(after time.Duration) {
	a, timer := r.of, (*time.Timer)(nil)
	timer = time.AfterFunc(after, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.expiry == timer {
			r.cut()
		}
	})
	r.expiry = timer
}

// unregister says that the request is over.
func (r *request) unregister() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.expiry != nil {
		r.expiry.Stop()
	}
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

// cut ends every request that matches and waits until they are gone.
func (a *active) cut(match func(*request) bool) {
	all := a.matching(match)
	for _, d := range all {
		a.doom(d)
	}
	for _, d := range all {
		<-d.ended
	}
}

// doom cuts a request unless it has ended since it was found: what was that request may be another one by now.
func (a *active) doom(d doomed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.found.ended == d.ended {
		d.found.cut()
	}
}

// drain waits for all requests until ctx ends, then cuts the rest. The error is ctx's if any had to be cut.
func (a *active) drain(ctx context.Context) error {
	all := func(*request) bool { return true }
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

func (a *active) matching(match func(*request) bool) (list []doomed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := a.open; r != nil; r = r.next {
		if !match(r) {
			continue
		}
		if r.ended == nil {
			r.ended = make(chan struct{})
		}
		list = append(list, doomed{r, r.ended})
	}
	return list
}
