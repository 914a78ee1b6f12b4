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
	// retryDelay is the minimum time between attempts after a failure: a box that repeats its request must not be able
	// to make the gateway start commands as fast as it can send requests.
	retryDelay = time.Second
	// killDelay is how long a refresh may take to end after its deadline.
	killDelay = 500 * time.Millisecond
	// tellDelay is the minimum time between log lines about the same failure of a source.
	tellDelay = time.Minute
)

var (
	errStopping = errors.New("the gateway is stopping")
	errTimeout  = errors.New("it does not answer")
)

// entry is one secret: its source and the state of its value.
type entry struct {
	name   string
	source Source
	// load reads the source. said is for the log: what a command wrote to its standard error, without known, the last
	// value.
	load  func(ctx context.Context, known policy.Secret) (value policy.Secret, said string, err error)
	owner *Secrets

	hanging atomic.Bool // a load has not returned: do not begin another

	mu      sync.Mutex
	have    bool // value was read and has not expired
	value   policy.Secret
	last    policy.Secret // the last value read; if expired it is not used, but must not be shown either
	early   time.Time     // when to refresh it before it expires
	expires time.Time
	err     error     // why the last refresh failed; nil if it did not
	retry   time.Time // no refresh before
	flight  *flight   // the current refresh
	told    string    // the last failure logged
	toldAt  time.Time
}

// flight is one refresh; its result may be read once done is closed.
type flight struct {
	done  chan struct{}
	value policy.Secret
	err   error
}

// get returns the value if it has not expired, else that of a refresh, of which there is one at a time.
func (e *entry) get(ctx context.Context) (policy.Secret, error) {
	e.mu.Lock()
	now := time.Now()
	valid := e.valid(now)
	due := !valid || e.source.refresh() != 0 && !now.Before(e.early)
	if due && e.flight == nil && !now.Before(e.retry) {
		e.begin(now)
	}
	value, err, f := e.value, e.err, e.flight
	valid = valid && e.have // begin resets it if the secrets are closed
	e.mu.Unlock()
	switch {
	case valid:
		return value, nil
	case f == nil:
		return policy.Secret{}, err // it has just failed
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

// refresh reads the source and keeps the result. The age of a value counts from the start of the read.
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

// loadInTime reads the source, but does not wait for longer than its timeout: reading a file on an unreachable network
// file system cannot be interrupted. While a read hangs, no other is started.
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
			over, late = nil, time.After(killDelay) // a command is being killed: wait for its result
		case <-late:
			return policy.Secret{}, "", errTimeout
		}
	}
}

// mayTell reports whether a failure should be logged: each kind when it begins, and then once per tellDelay.
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
