package ingress

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errCut is the cause of a cut: the request's URL, credential or box has gone.
var errCut = errors.New("the public URL was revoked")

// active tracks the requests that have passed authentication, so that they can be cut. The zero value is ready to use.
type active struct {
	mu   sync.Mutex
	open *request // the first of a list
}

// request is one authenticated request or WebSocket. Once unregistered, it can be used for another one.
type request struct {
	of *active

	// Guarded by of.mu.
	target         Target
	by             admission
	expiry         *time.Timer   // nil: the admission does not end
	cut            func()        // makes the request end soon; may be called more than once
	ended          chan struct{} // closed when the request ends; nil unless a goroutine waits for that
	next, previous *request
}

// doomed is a request to cut or to wait for.
type doomed struct {
	found *request
	ended chan struct{}
}

// begin registers a request. cut is called from another goroutine when the URL, credential, session or box has gone, or when
// the admission expires, but not after the request's end. It must neither block nor call methods of a. [request.unregister]
// must be called when the request is over, before another begin.
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

// expire cuts the request after a time. The timer also takes a.mu, and checks that r has not become another request since.
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

// unregister removes a request that is over.
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

// cut cuts every request that matches and waits until they have ended.
func (a *active) cut(match func(*request) bool) {
	all := a.matching(match)
	for _, d := range all {
		a.doom(d)
	}
	for _, d := range all {
		<-d.ended
	}
}

// doom cuts a request unless it has ended since it was found: r may have been registered again for another one.
func (a *active) doom(d doomed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.found.ended == d.ended {
		d.found.cut()
	}
}

// drain waits for all requests until ctx ends, then cuts the rest. It returns ctx's error if any had to be cut.
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
