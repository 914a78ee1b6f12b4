package secrets

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/policy"
)

const (
	// retryDelay is how long a source that failed is left alone: a box that repeats its request must not be able to make
	// the gateway start commands as fast as it can ask.
	retryDelay = time.Second
	// killDelay is how long a refresh whose deadline has passed may take to come to its end.
	killDelay = 500 * time.Millisecond
	// tellDelay is how long a source that fails in the same way is not told about again.
	tellDelay = time.Minute
)

var (
	errStopping = errors.New("the gateway is stopping")
	errTimeout  = errors.New("it does not answer")
)

// entry is one secret: its source and what is known of its value.
type entry struct {
	name   string
	source Source
	// load asks the source. said is for the log: what a command wrote to its standard error, without known, the value
	// that it gave last.
	load  func(ctx context.Context, known policy.Secret) (value policy.Secret, said string, err error)
	owner *Secrets

	hanging atomic.Bool // a load has not returned: no second one begins

	mu      sync.Mutex
	have    bool // value was read and has not been found expired
	value   policy.Secret
	last    policy.Secret // read last, though it may have expired: it is not used, and must not be shown
	early   time.Time     // from then on it is refreshed ahead
	expires time.Time
	err     error     // why the last refresh failed; nil if it did not
	retry   time.Time // no refresh before
	flight  *flight   // the refresh under way
	told    string    // the failure that was logged last
	toldAt  time.Time
}

// flight is one refresh; its result may be read once done is closed.
type flight struct {
	done  chan struct{}
	value policy.Secret
	err   error
}

// get returns the value if it is young enough, else that of a refresh, of which there is one at a time.
func (e *entry) get(ctx context.Context) (policy.Secret, error) {
	e.mu.Lock()
	now := time.Now()
	valid := e.valid(now)
	due := !valid || e.source.refresh() != 0 && !now.Before(e.early)
	if due && e.flight == nil && !now.Before(e.retry) {
		e.begin(now)
	}
	value, err, f := e.value, e.err, e.flight
	valid = valid && e.have // begin ends it if the secrets are closed
	e.mu.Unlock()
	switch {
	case valid:
		return value, nil
	case f == nil:
		return policy.Secret{}, err // it failed a moment ago
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		return policy.Secret{}, e.wrap(ctx.Err())
	}
}

// valid reports whether the value may be used. The caller holds e.mu.
func (e *entry) valid(now time.Time) bool {
	if e.have && e.source.refresh() != 0 && !now.Before(e.expires) {
		e.have, e.value = false, policy.Secret{}
	}
	return e.have
}

// begin starts a refresh. The caller holds e.mu.
func (e *entry) begin(now time.Time) {
	f := &flight{done: make(chan struct{})}
	if e.owner.fly(func() { e.refresh(f, now) }) {
		e.flight = f
		return
	}
	e.have, e.value, e.err = false, policy.Secret{}, e.wrap(errStopping)
}

// refresh asks the source and keeps what came of it. The age of a value counts from when its source was asked.
func (e *entry) refresh(f *flight, began time.Time) {
	value, said, err := e.loadInTime()
	if err != nil {
		err = e.wrap(err)
	}
	e.mu.Lock()
	failedBefore := e.err != nil
	e.err, e.flight = err, nil
	if err != nil {
		e.retry = time.Now().Add(retryDelay)
	} else {
		e.have, e.value, e.last, e.told = true, value, value, ""
		e.expires = began.Add(e.source.refresh())
		e.early = began.Add(e.source.refresh() * 3 / 4)
	}
	valid := e.valid(time.Now())
	e.mu.Unlock()
	e.owner.report(e, err, said, failedBefore, valid)
	f.value, f.err = value, err
	close(f.done)
}

// loadInTime asks the source, but does not wait for it longer than its timeout: reading a file of a network that is gone
// cannot be interrupted. While it hangs it is not asked again.
func (e *entry) loadInTime() (policy.Secret, string, error) {
	if !e.hanging.CompareAndSwap(false, true) {
		return policy.Secret{}, "", errTimeout
	}
	ctx, cancel := context.WithTimeout(e.owner.base, e.source.timeout())
	defer cancel()
	type result struct {
		value policy.Secret
		said  string
		err   error
	}
	done := make(chan result, 1)
	e.mu.Lock()
	known := e.last
	e.mu.Unlock()
	go func() {
		value, said, err := e.load(ctx, known)
		e.hanging.Store(false)
		done <- result{value, said, err}
	}()
	var late <-chan time.Time
	over := ctx.Done()
	for {
		select {
		case r := <-done:
			return r.value, r.said, r.err
		case <-over:
			over, late = nil, time.After(killDelay) // a command is being killed: hear how it ended
		case <-late:
			return policy.Secret{}, "", errTimeout
		}
	}
}

// mayTell reports whether a failure should be logged: each kind when it begins, and then once in a while.
func (e *entry) mayTell(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told == err.Error() && time.Since(e.toldAt) < tellDelay {
		return false
	}
	e.told, e.toldAt = err.Error(), time.Now()
	return true
}

// wrap says which secret and source an error is about.
func (e *entry) wrap(err error) error {
	return &Error{Secret: e.name, Source: e.source.String(), Err: err}
}
