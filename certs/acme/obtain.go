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

// flight is the obtaining of one certificate, for all who ask for it meanwhile.
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
	errFailed = errors.New("the last attempt to obtain its certificate failed, and it is too early for another")
)

// request has a certificate obtained, unless that is under way already or failed a short time ago.
func (m *Manager) request(subject string) (*flight, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.flights[subject]; f != nil {
		return f, nil
	}
	if m.ending.Err() != nil {
		return nil, errClosed
	}
	if time.Now().Before(m.failed[subject].until) {
		return nil, errFailed
	}
	f := &flight{done: make(chan struct{})}
	m.flights[subject] = f
	m.tasks.Go(func() {
		err := m.contained(func() error { return m.obtain(subject) })
		m.land(subject, f, err)
	})
	return f, nil
}

// land ends a flight and remembers how it went.
func (m *Manager) land(subject string, f *flight, err error) {
	m.mu.Lock()
	delete(m.flights, subject)
	if m.ending.Err() == nil {
		m.rememberLocked(subject, err)
	}
	m.mu.Unlock()
	f.err = err
	close(f.done)
}

func (m *Manager) rememberLocked(subject string, err error) {
	if err == nil {
		delete(m.failed, subject)
		m.held[subject] = true
		return
	}
	last := m.failed[subject]
	wait := min(m.cfg.retry<<min(last.times, 20), lastRetry)
	if limited(err) {
		wait = max(wait, limitedRetry)
	}
	m.failed[subject] = failure{times: last.times + 1, until: time.Now().Add(wait)}
	m.cfg.Log.Warn("no certificate could be obtained", zap.String("subject", subject), zap.Duration("not_tried_again_for", wait), zap.Error(err))
}

// limited reports whether an issuer refused because of a rate limit.
func limited(err error) bool {
	problem, ok := errors.AsType[acme.Problem](err)
	return ok && (problem.Status == http.StatusTooManyRequests || problem.Type == acme.ProblemTypeRateLimited)
}

// obtain loads a certificate from the storage, or gets it from an issuer. It waits for one of the places.
func (m *Manager) obtain(subject string) error {
	for _, places := range m.placesOf(subject) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-m.ending.Done():
			return errClosed
		}
	}
	if !m.wanted(subject) { // any more
		return errNotServed
	}
	ctx, cancel := context.WithTimeout(m.ending, obtainTime)
	defer cancel()
	m.forget(subject) // what is cached has expired
	return m.configOf(subject).ManageSync(ctx, []string{subject})
}

// placesOf returns what a subject takes a place of, in this order.
func (m *Manager) placesOf(subject string) []chan struct{} {
	if strings.HasSuffix(subject, "."+m.cfg.Domain.String()) {
		return []chan struct{}{m.places}
	}
	return []chan struct{}{m.foreign, m.places}
}

// forget takes a certificate out of memory.
func (m *Manager) forget(subject string) {
	m.cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: subject}})
}

// contained makes an error of a panic of f. Where it happened is logged, not its text, which may hold a secret.
func (m *Manager) contained(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			m.cfg.Log.Error("panic while a certificate was obtained", zap.ByteString("stack", debug.Stack()))
			err = errors.New("obtaining the certificate failed by a panic")
		}
	}()
	return f()
}
