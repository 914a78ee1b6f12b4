package acme

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
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
