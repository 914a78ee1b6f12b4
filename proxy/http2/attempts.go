package http2

import (
	"context"
	"net/http"

	"golang.org/x/net/http2"

	"boxgate/proxy/contain"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
)

//lint:file-ignore SA1019 as for upstream_h2.go

// attempts is one request over HTTP/2 with its attempts. It is retried where that is safe: the server said that it did
// not process the stream (by refusing it or by GOAWAY), or the request was never sent. The library decides that and
// requests a connection for each attempt.
type attempts struct {
	st   *stream
	ctx  context.Context
	up   *origin.H2Conn // of the attempt in progress
	used bool           // a request was sent on up
	n    int
	err  error // why there is no further attempt
}

const maxAttempts = 3

type attemptsKey struct{}

// errRepeat fails a request that could be retried, but whose body is no longer available.
var errRepeat = error(problem.Fixed("the upstream did not handle the request, and its body is no longer available to retry it"))

// h2Attempts sends requests that carry their attempts in their context. Its connections come from the pool.
var h2Attempts = &http2.Transport{ConnPool: attemptPool{}, DisableCompression: true}

type attemptPool struct{}

// GetClientConn returns the connection for the next attempt, with one stream reserved.
func (attemptPool) GetClientConn(r *http.Request, _ string) (*http2.ClientConn, error) {
	a, ok := r.Context().Value(attemptsKey{}).(*attempts)
	if !ok {
		return nil, contain.ErrFault
	}
	return a.next()
}

// MarkDead does nothing: the pool learns of the end from the connection.
func (attemptPool) MarkDead(*http2.ClientConn) {}

func (a *attempts) next() (*http2.ClientConn, error) {
	if a.n++; a.n > 1 {
		a.leave()
		if a.err = a.another(); a.err != nil {
			return nil, a.err
		}
	}
	if a.err = a.st.goesTo(a.up.Addr()); a.err != nil {
		return nil, a.err
	}
	a.used = true
	return a.up.Client, nil
}

// another acquires another connection.
func (a *attempts) another() error {
	if a.n > maxAttempts {
		return errRepeat
	}
	up, err := a.st.s.Core.Origins.Any(a.ctx, a.st.s.Origin, a.st.ruling.Target(a.st.s))
	if err != nil {
		return err
	}
	if up.H1 != nil { // the host now speaks HTTP/1.1: the client may retry
		up.H1.Keep()
		return errRepeat
	}
	a.up = up.H2
	return nil
}

func (a *attempts) leave() {
	if a.up != nil {
		a.up.Leave(a.used)
	}
	a.up, a.used = nil, false
}
