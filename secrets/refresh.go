package secrets

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

const (
	// retryDelay is the minimum time between attempts after a failure: a box that repeats its request must not be able
	// to make the gateway start commands as fast as it can send requests. For a remote source it doubles with each
	// failure, up to maxRetryDelay.
	retryDelay    = time.Second
	maxRetryDelay = 30 * time.Second
	// killDelay is how long a refresh may take to end after its deadline.
	killDelay = 500 * time.Millisecond
	// logDelay is the minimum time between log lines about the same failure of a source.
	logDelay = time.Minute
)

var (
	errStopping = errors.New("the gateway is stopping")
	errTimeout  = errors.New("it does not answer")
	errFault    = errors.New("reading it failed inside the gateway")
	errRevoked  = errors.New("it was revoked, and is being read again")
)

// entry is one secret: its source and the state of its value.
type entry struct {
	name   string
	source Source
	// load reads the source. known is the last value, to be masked in texts from the source.
	load  func(ctx context.Context, known name.Secret) (readResult, error)
	owner *Secrets

	hanging atomic.Bool // a load has not returned: do not start another

	mu           sync.Mutex
	hasValue     bool // value was read and has not expired
	value        name.Secret
	lastValue    name.Secret // the last value read; after it expires it is no longer used, but still must not be shown
	noExpiry     bool        // value does not expire
	readAt       moment      // when the source was read for value
	refreshAt    moment      // when to refresh it ahead of its expiry
	expires      moment
	sourceExpiry time.Time // like expires, but only by the source's lifetime; zero: unknown
	err          error     // of the last refresh; nil if it succeeded
	failures     int       // number of failures in a row
	retryAt      moment    // earliest time of the next refresh
	pausedUntil  moment    // likewise, on request of the server; a revocation does not override it
	gone         bool      // the source reported that the secret no longer exists
	flight       *flight   // the current refresh
	timer        *time.Timer
	lastLogged   string // the last failure that was logged
	lastLoggedAt time.Time
}

// flight is one refresh. Its result may be read once done is closed.
type flight struct {
	done  chan struct{}
	stale bool // the secret was revoked during the read: its result must not be used. Guarded by the entry's mu
	// rereads counts how often that happened. Guarded by the entry's mu.
	rereads int
	value   name.Secret
	err     error
}

// currentValue returns the value if it has not expired, else the result of a refresh. Only one refresh runs at a time.
func (e *entry) currentValue(ctx context.Context) (name.Secret, error) {
	e.mu.Lock()
	now := e.owner.now()
	valid := e.valid(now)
	due := !valid || !e.noExpiry && e.refreshAt.isReachedBy(now)
	if due && e.flight == nil && e.retryAt.isReachedBy(now) {
		e.startRefresh()
	}
	value, err, f := e.value, e.err, e.flight
	valid = valid && e.hasValue // startRefresh resets hasValue if the secrets are closed
	e.mu.Unlock()
	switch {
	case valid:
		return value, nil
	case f == nil:
		return name.Secret{}, err // it has just failed
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		return name.Secret{}, e.wrap(ctx.Err())
	}
}

// valid reports whether the value may be used. The caller holds e.mu.
func (e *entry) valid(now moment) bool {
	if e.hasValue && !e.noExpiry && e.expires.isReachedBy(now) {
		e.hasValue, e.value = false, name.Secret{}
	}
	return e.hasValue
}

// startRefresh starts a refresh. The caller holds e.mu.
func (e *entry) startRefresh() {
	f := &flight{done: make(chan struct{})}
	if e.owner.goRefresh(func() { e.refresh(f) }) {
		e.flight = f
		return
	}
	if e.owner.isResting() && e.hasValue {
		return
	}
	e.hasValue, e.value, e.err = false, name.Secret{}, e.wrap(errStopping)
}

// refresh reads the source, again if the secret is revoked during the read, and stores the result. The age of a value
// counts from the start of the read.
func (e *entry) refresh(f *flight) {
	for {
		began := e.owner.now()
		got, err := e.loadInTime()
		if err != nil {
			err = e.wrap(err)
		}
		if e.finishRead(f, began, got, err) {
			close(f.done)
			return
		}
	}
}

// finishRead stores the result of a read. It reports false if the result is stale and the source has to be read again.
func (e *entry) finishRead(f *flight, began moment, got readResult, err error) bool {
	e.mu.Lock()
	if f.stale {
		switch {
		case e.owner.base.Err() != nil:
			err = e.wrap(errStopping)
		case retryAfter(err) == 0: // otherwise the server asked for a pause
			f.stale = false
			f.rereads++
			e.mu.Unlock()
			return false
		}
	}
	failedBefore, newlyGone := e.err != nil, false
	if err == nil {
		err = e.storeValue(began, got)
	}
	if err != nil {
		newlyGone = e.recordFailure(err)
	}
	e.err, e.flight = err, nil
	if f.err = err; err == nil {
		f.value = got.value
	}
	valid := e.valid(e.owner.now())
	e.scheduleRefresh()
	e.mu.Unlock()
	e.owner.report(e, err, got.output, failedBefore, valid)
	if newlyGone {
		e.owner.revoked(e.name)
	}
	return true
}

// storeValue stores a value. It fails if the value expired during the read; a value that is merely too old to be used
// again is still returned to the waiting callers. The caller holds e.mu.
func (e *entry) storeValue(began moment, got readResult) error {
	use := e.source.usableFor(got.lifetime)
	e.lastValue, e.noExpiry = got.value, use == 0
	e.readAt, e.expires, e.refreshAt = began, began.add(use), began.add(use*3/4)
	e.sourceExpiry = time.Time{}
	if got.lifetime != 0 && !e.source.isStatic() {
		e.sourceExpiry = began.wall.Add(usableLifetime(got.lifetime))
	}
	if e.hasValue, e.value = true, got.value; !e.valid(e.owner.now()) && got.lifetime != 0 {
		return e.wrap(remote.ErrExpired)
	}
	e.lastLogged, e.failures, e.retryAt, e.pausedUntil, e.gone = "", 0, moment{}, moment{}, false
	return nil
}

// recordFailure records a failure, and reports whether it is the first one that means that the secret is gone. In that
// case the value is no longer used. The caller holds e.mu.
func (e *entry) recordFailure(err error) (newlyGone bool) {
	e.failures++
	now := e.owner.now()
	e.retryAt, e.pausedUntil = now.add(e.retryPause(err)), moment{}
	if wait := retryAfter(err); wait > 0 {
		e.pausedUntil = now.add(wait)
	}
	if !remote.IsGone(err) {
		return false
	}
	newlyGone = !e.gone
	e.gone, e.hasValue, e.value = true, false, name.Secret{}
	return newlyGone
}

// retryPause is the pause after a failure. The caller holds e.mu.
func (e *entry) retryPause(err error) time.Duration {
	if e.source.Remote == nil {
		return retryDelay
	}
	return max(min(retryDelay<<min(e.failures-1, 10), maxRetryDelay), retryAfter(err))
}

// retryAfter returns the pause that a server requested; 0 if it did not.
func retryAfter(err error) time.Duration {
	if refused, ok := errors.AsType[*remote.Error](err); ok {
		return refused.RetryAfter
	}
	return 0
}

// loadInTime reads the source, but waits no longer than its timeout: reading a file on an unreachable network file
// system cannot be interrupted. While a read hangs, no other is started.
func (e *entry) loadInTime() (readResult, error) {
	if !e.hanging.CompareAndSwap(false, true) {
		return readResult{}, errTimeout
	}
	ctx, cancel := context.WithTimeout(e.owner.base, e.source.timeout())
	defer cancel()
	type result struct {
		got readResult
		err error
	}
	done := make(chan result, 1)
	e.mu.Lock()
	known := e.lastValue
	e.mu.Unlock()
	go func() {
		var r result
		defer func() {
			if v := recover(); v != nil { // the panic's value may quote a secret
				r = result{err: errFault}
			}
			e.hanging.Store(false)
			done <- r
		}()
		r.got, r.err = e.load(ctx, known)
	}()
	var late <-chan time.Time
	over := ctx.Done()
	for {
		select {
		case r := <-done:
			return r.got, r.err
		case <-over:
			over, late = nil, time.After(e.endTimeout()) // a command is being killed: wait for its result
		case <-late:
			return readResult{}, errTimeout
		}
	}
}

// endTimeout is how long a read may take to end after its context ended. An exchange of refresh tokens ends by its own
// deadline, because its answer must be kept.
func (e *entry) endTimeout() time.Duration {
	if e.source.Remote != nil {
		return e.source.timeout() + killDelay
	}
	return killDelay
}

// shouldLog reports whether a failure should be logged: each kind when it begins, and then once per logDelay.
func (e *entry) shouldLog(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastLogged == err.Error() && time.Since(e.lastLoggedAt) < logDelay {
		return false
	}
	e.lastLogged, e.lastLoggedAt = err.Error(), time.Now()
	return true
}

// wrap adds the secret and its source to an error.
func (e *entry) wrap(err error) error {
	return &Error{Secret: e.name, Source: e.source.String(), Err: err}
}

// moment is a point in time on two clocks. The monotonic clock cannot be set, but stops while the host is suspended;
// the wall clock continues, but can be set. A value expires on whichever clock gets there first.
type moment struct {
	elapsed time.Duration // since the secrets were opened
	wall    time.Time
}

func (m moment) add(d time.Duration) moment {
	return moment{elapsed: m.elapsed + d, wall: m.wall.Add(d)}
}

// isReachedBy reports whether now is m or later.
func (m moment) isReachedBy(now moment) bool {
	return now.elapsed >= m.elapsed || !now.wall.Before(m.wall)
}

// clock returns a function that returns the current time.
func clock() func() moment {
	start := time.Now()
	return func() moment { return moment{elapsed: time.Since(start), wall: fault.Now().Round(0)} }
}
