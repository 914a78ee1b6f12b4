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
	target Target
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the handler has returned
}

// begin registers a request. Its context ends with [errCut] when it is cut; end must be called when it is over.
func (a *active) begin(ctx context.Context, t Target) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &request{target: t, cancel: cancel, done: make(chan struct{})}
	a.mu.Lock()
	if a.open == nil {
		a.open = make(map[*request]struct{})
	}
	a.open[r] = struct{}{}
	a.mu.Unlock()
	return ctx, func() {
		cancel(nil)
		a.mu.Lock()
		delete(a.open, r)
		a.mu.Unlock()
		close(r.done)
	}
}

// cut ends every request whose target matches and waits until they are gone.
func (a *active) cut(match func(Target) bool) {
	doomed := a.matching(match)
	for _, r := range doomed {
		r.cancel(errCut)
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
