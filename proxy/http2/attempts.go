package http2

import (
	"context"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/relay/h2/upstream"
)

// attempts is one HTTP/2 request with its attempts. It is retried where that is safe: the server reported that it did not
// process the stream (by REFUSED_STREAM or GOAWAY), or the request was never sent.
type attempts struct {
	st     *stream
	up     *origin.H2Conn // of the attempt in progress
	used   bool           // a stream was opened on up
	n      int
	fields []hpack.HeaderField
	source *uploadSource // may be nil
}

const (
	maxAttempts  = 3
	attemptPause = time.Second // before the last attempt
)

// errRepeat fails a request that could be retried, but whose body is no longer available.
var errRepeat = error(problem.Fixed("the upstream did not handle the request, and its body is no longer available to retry it"))

// attempts prepares the request for its first attempt, on up.
func (st *stream) attempts(up *origin.H2Conn) *attempts {
	a := &attempts{st: st, up: up, fields: st.requestFields(), source: st.early.source}
	if st.length != 0 && a.source == nil {
		a.source = st.newUploadSource()
	}
	return a
}

// send sends the request until the server handles it. The response's body may still be arriving, and so may the request's,
// until the response's body is closed.
func (a *attempts) send(res *result) error {
	for {
		a.n++
		err := a.try(res)
		if err == nil || !upstream.Unprocessed(err) {
			return err
		}
		if err := a.another(); err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (a *attempts) try(res *result) error {
	if a.st.early.stream != nil {
		return a.adopt(res)
	}
	if err := a.st.goesTo(a.up); err != nil {
		return err
	}
	if a.source != nil {
		if err := a.source.inspect(); err != nil {
			return err
		}
	}
	a.used = true
	s, err := a.up.Client.Open(a.st.ctx, a.fields, a.source == nil)
	if err != nil {
		return err
	}
	*res = result{Stream: s}
	if a.source != nil {
		res.source = a.source
		if !s.Complete(a.source.known()) {
			res.upload = a.st.upload(s, a.source.attempt())
		}
	}
	if err := a.st.receive(res); err != nil {
		res.close()
		return err
	}
	return nil
}

// adopt continues an attempt that was started without a goroutine.
func (a *attempts) adopt(res *result) error {
	a.used = true
	*res = result{Stream: a.st.early.stream, source: a.source}
	a.st.early = early{}
	res.Attend(a.st.ctx)
	if err := a.st.receive(res); err != nil {
		res.close()
		return err
	}
	return nil
}

// another acquires a connection for another attempt.
func (a *attempts) another() error {
	if a.source != nil && a.source.lost() {
		return errRepeat
	}
	a.releaseConn()
	switch a.n {
	case maxAttempts:
		return errRepeat
	case maxAttempts - 1:
		if err := pause(a.st.ctx, attemptPause); err != nil {
			return err
		}
	}
	up, err := a.st.s.Core.Origins.Any(a.st.ctx, a.st.s.Origin, a.st.decision.Target(a.st.s))
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

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *attempts) releaseConn() {
	if a.up != nil {
		a.up.Leave(a.used)
	}
	a.up, a.used = nil, false
}
