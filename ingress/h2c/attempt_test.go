package h2c

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/pool"
)

// opened is the result of a request for a connection.
type opened struct {
	net.Conn
	err error
}

// open requests connections at the same time, and returns when all requests wait for an attempt.
func open(ctx context.Context, p *Pool[string], many int, dial Dial, gone func() error) <-chan opened {
	out := make(chan opened, many)
	for range many {
		go func() {
			c, err := p.Open(ctx, "port", false, dial, gone)
			out <- opened{c, err}
		}()
	}
	for p.conns.Stats().Waiting < many {
		runtime.Gosched()
	}
	return out
}

// empty waits until the pool remembers no port: a cancelled attempt takes a moment to end.
func empty(t *testing.T, p *Pool[string]) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.conns.Open() != 0 || p.conns.Stats() != (pool.Stats{}); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left: %d connections, %+v", p.conns.Open(), p.conns.Stats())
		}
	}
}

// TestAFailedAttemptIsEverybodys has requests wait for an application that cannot be reached: all get the failure of one
// attempt.
func TestAFailedAttemptIsEverybodys(t *testing.T) {
	t.Parallel()
	p := newPool()
	ready, dials := make(chan struct{}), make(chan struct{}, 100)
	got := open(t.Context(), p, 20, func(context.Context) (net.Conn, error) {
		dials <- struct{}{}
		<-ready
		return nil, syscall.ECONNREFUSED
	}, stays)
	close(ready)
	for range 20 {
		if o := <-got; !errors.Is(o.err, syscall.ECONNREFUSED) {
			t.Errorf("%v", o.err)
		}
	}
	if len(dials) != 1 {
		t.Errorf("%d attempts", len(dials))
	}
	empty(t, p)
}

// TestAnAttemptEnds has an application that never accepts: a request waits no longer than the time limit.
func TestAnAttemptEnds(t *testing.T) {
	t.Parallel()
	p := NewPool[string](time.Millisecond, 4, nil, nil)
	ended := make(chan struct{})
	_, err := p.Open(t.Context(), "port", false, func(ctx context.Context) (net.Conn, error) {
		defer close(ended)
		<-ctx.Done()
		return nil, ctx.Err()
	}, stays)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	<-ended
}

// TestAVisitorWhoLeavesWaitsNoLonger: visitors who leave free their places while the attempt continues. The attempt is
// cancelled when the last one leaves.
func TestAVisitorWhoLeavesWaitsNoLonger(t *testing.T) {
	t.Parallel()
	p := newPool()
	ended := make(chan struct{})
	dial := func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := errors.New("gone")
	got := open(ctx, p, 1, dial, stays)
	if _, err := p.Open(t.Context(), "port", false, dial, func() error { return left }); !errors.Is(err, left) {
		t.Errorf("%v", err)
	}
	select {
	case <-ended:
		t.Error("the attempt ended while somebody waited for it")
	default:
	}
	cancel()
	if o := <-got; !errors.Is(o.err, context.Canceled) {
		t.Errorf("%v", o.err)
	}
	<-ended
	empty(t, p)
}

// TestAttemptThatNobodyWaitsFor has an application accept after all visitors have left: the connection is closed.
func TestAttemptThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	p := newPool()
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	got := open(ctx, p, 3, func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return here, nil
	}, stays)
	cancel()
	for range 3 {
		<-got
	}
	_, _ = io.Copy(io.Discard, there)
	empty(t, p)
}

// TestAPanicInAnAttemptIsAFailure ends the requests, not the gateway.
func TestAPanicInAnAttemptIsAFailure(t *testing.T) {
	t.Parallel()
	p := newPool()
	if _, err := p.Open(t.Context(), "port", false, func(context.Context) (net.Conn, error) { panic("x") }, stays); err == nil {
		t.Error("no error")
	}
	empty(t, p)
}

// TestAConnectionWithoutStreamsIsNotKept has an application that admits no stream at all.
func TestAConnectionWithoutStreamsIsNotKept(t *testing.T) {
	t.Parallel()
	p := newPool()
	here, there := net.Pipe()
	c, err := p.Open(t.Context(), "port", false, func(context.Context) (net.Conn, error) { return here, nil }, stays)
	if err != nil {
		t.Fatal(err)
	}
	told, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.ReadFull(there, make([]byte, len(http2.ClientPreface)))
		fr := http2.NewFramer(there, there)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if f, ok := f.(*http2.SettingsFrame); ok && f.IsAck() {
				close(told)
			}
		}
	}()
	if err := http2.NewFramer(there, nil).WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams}); err != nil {
		t.Fatal(err)
	}
	<-told
	c.Close()
	empty(t, p)
	p.CloseIdle()
	<-ended
}
