package acme

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// flight is an attempt to obtain one certificate, shared by all concurrent callers.
type flight struct {
	done chan struct{}
	err  error // valid once done is closed
}

// failure keeps a subject from being tried again until a time.
type failure struct {
	times uint
	until time.Time
}

var (
	errClosed = errors.New("the gateway is stopping")
	// errRefused wraps the reason of [Config.Order].
	errRefused = errors.New("no certificate is ordered")
	errFailed  = errors.New("the last attempt to obtain its certificate failed, and it is too early for another")
)

// request starts to obtain a certificate, unless an attempt is running or failed recently.
func (m *Manager) request(subject string) (*flight, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.flights[subject]; f != nil {
		return f, nil
	}
	if m.ctx.Err() != nil {
		return nil, errClosed
	}
	if time.Now().Before(m.failed[subject].until) {
		return nil, errFailed
	}
	turn, err := m.queueTurn(subject)
	if err != nil {
		return nil, err
	}
	f := &flight{done: make(chan struct{})}
	m.flights[subject] = f
	m.tasks.Go(func() {
		err := m.recoverPanic(func() error { return m.obtain(subject, turn) })
		m.endFlight(subject, f, err)
	})
	return f, nil
}

// endFlight ends a flight and records its result.
func (m *Manager) endFlight(subject string, f *flight, err error) {
	m.mu.Lock()
	delete(m.flights, subject)
	if m.ctx.Err() == nil {
		m.rememberLocked(subject, err)
	}
	m.mu.Unlock()
	f.err = err
	close(f.done)
}

func (m *Manager) rememberLocked(subject string, err error) {
	if err == nil {
		delete(m.failed, subject)
		m.loaded[subject] = true
		return
	}
	times := m.failed[subject].times
	wait := min(m.cfg.retry<<min(times, 20), lastRetry)
	switch {
	case errors.Is(err, errRefused): // refused by Order, not by an issuer
		wait = refusedRetry
	case isRateLimited(err):
		wait, times = max(wait, limitedRetry), times+1
	default:
		times++
	}
	m.failed[subject] = failure{times: times, until: time.Now().Add(wait)}
	m.cfg.Log.Warn("no certificate could be obtained", zap.String("subject", subject), zap.Duration("not_tried_again_for", wait), zap.Error(err))
}

// isRateLimited reports whether an issuer refused because of a rate limit.
func isRateLimited(err error) bool {
	problem, ok := errors.AsType[acme.Problem](err)
	return ok && (problem.Status == http.StatusTooManyRequests || problem.Type == acme.ProblemTypeRateLimited)
}

// obtain waits for the turn, unless it is nil, and loads a certificate from the storage or gets it from an issuer.
func (m *Manager) obtain(subject string, turn *turn) error {
	limit := wildcardTime
	if turn != nil {
		select {
		case <-turn.ready:
			defer turn.release()
		case <-m.ctx.Done():
			return errClosed
		}
		limit = obtainTime
	}
	if !m.isServed(subject) { // the URL may have been removed while waiting
		return errNotServed
	}
	ctx, cancel := context.WithTimeout(m.ctx, limit)
	defer cancel()
	m.dropCached(subject) // the cached certificate has expired
	err := m.configOf(subject).ManageSync(ctx, []string{subject})
	if err != nil && subject != m.wildcard && !errors.Is(err, errRefused) {
		m.cfg.Failed(subject)
	}
	return err
}

// queueTurn queues an attempt. The turn is nil for the wildcard, which needs no place.
func (m *Manager) queueTurn(subject string) (*turn, error) {
	switch {
	case subject == m.wildcard:
		return nil, nil
	case strings.HasSuffix(subject, "."+m.cfg.Domain.String()):
		return m.own.enqueue(m.cfg.Owner(subject))
	}
	return m.others.enqueue(m.cfg.Owner(subject))
}

// dropCached drops a certificate from memory.
func (m *Manager) dropCached(subject string) {
	m.cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: subject}})
}

// recoverPanic turns a panic of f into an error. It logs the stack but not the panic's text, which may contain a secret.
func (m *Manager) recoverPanic(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			m.cfg.Log.Error("panic while a certificate was obtained", zap.ByteString("stack", debug.Stack()))
			err = errors.New("obtaining the certificate failed by a panic")
		}
	}()
	return f()
}

// maxWaiting bounds the waiting attempts of one owner.
const maxWaiting = 64

var errBusy = errors.New("too many certificates of this owner are waiting to be obtained; the next visit tries again")

// turns assigns a bounded number of places to attempts, round-robin by owner. An owner gets a place only while it holds
// fewer than are free (a dynamic threshold, as switches use for shared buffers): a single owner gets half of them, a
// later one half of the rest, and an owner without a place gets the next one that is released. Safe for concurrent use.
type turns struct {
	mu      sync.Mutex
	free    int
	inUse   map[string]int
	waiting map[string][]*turn // by owner, first come first; no list is empty
	owners  []string           // owners with waiting attempts; the first one is next
}

// turn is an attempt that waits for a place or has one.
type turn struct {
	turns *turns
	owner string
	ready chan struct{} // closed once it has a place
}

func newTurns(places int) *turns {
	return &turns{free: places, inUse: map[string]int{}, waiting: map[string][]*turn{}}
}

// enqueue waits for a place on behalf of an owner. It fails with errBusy if too many of the owner's attempts are waiting.
func (t *turns) enqueue(owner string) (*turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.waiting[owner]
	if len(line) >= maxWaiting {
		return nil, errBusy
	}
	if len(line) == 0 {
		t.owners = append(t.owners, owner)
	}
	w := &turn{turns: t, owner: owner, ready: make(chan struct{})}
	t.waiting[owner] = append(line, w)
	t.admitLocked()
	return w, nil
}

// release releases the place. Call it once, after ready is closed.
func (w *turn) release() {
	t := w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.inUse[w.owner]--; t.inUse[w.owner] == 0 {
		delete(t.inUse, w.owner)
	}
	t.admitLocked()
}

// admitLocked assigns free places. One pass is enough: each assignment leaves fewer free places, so a skipped owner
// stays skipped.
func (t *turns) admitLocked() {
	for i := 0; i < len(t.owners); {
		owner := t.owners[i]
		if t.inUse[owner] >= t.free {
			i++
			continue
		}
		line := t.waiting[owner]
		t.free--
		t.inUse[owner]++
		close(line[0].ready)
		t.owners = slices.Delete(t.owners, i, i+1)
		if len(line) == 1 {
			delete(t.waiting, owner)
			continue
		}
		t.waiting[owner] = line[1:]
		t.owners = append(t.owners, owner)
	}
}

// counts returns the number of taken places and of waiting attempts.
func (t *turns) counts() (taken, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.inUse {
		taken += n
	}
	for _, line := range t.waiting {
		waiting += len(line)
	}
	return taken, waiting
}
