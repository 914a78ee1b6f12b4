package relay

import (
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/relay/h1"
)

// parts is a body of single bytes, at whose end more has the last word.
type parts struct {
	n           int
	more        func(interrupted <-chan struct{}) (last bool, err error)
	interrupted chan struct{}
	panicked    atomic.Bool
}

func (p *parts) Gather(head []byte) ([]byte, int, bool, error) { return head, 0, false, nil }

func (p *parts) More(*Output) (framed []byte, content int, last bool, err error) {
	if p.n--; p.n >= 0 {
		return []byte("x"), 1, false, nil
	}
	last, err = p.more(p.interrupted)
	return nil, 0, last, err
}

func (p *parts) Interrupt()   { close(p.interrupted) }
func (p *parts) Panicked(any) { p.panicked.Store(true) }

// sink is a server that takes so many bytes.
type sink struct {
	room    int
	aborted atomic.Bool
}

var errTaken = errors.New("the server takes no more")

func (s *sink) Write(b []byte) error {
	if s.room -= len(b); s.room < 0 {
		return errTaken
	}
	return nil
}

func (s *sink) Abort() { s.aborted.Store(true) }

// slow is a server that takes a part only when the test allows it.
type slow struct{ allowed chan struct{} }

func (s slow) Write([]byte) error {
	<-s.allowed
	return nil
}

func (s slow) Abort() {}

// one is a body of one part.
type one struct{}

func (one) Gather(head []byte) ([]byte, int, bool, error) { return head, 0, false, nil }
func (one) More(*Output) (framed []byte, content int, last bool, err error) {
	return []byte("x"), 1, true, nil
}
func (one) Interrupt()   {}
func (one) Panicked(any) {}

// TestResponseBeforeTheUploadHasNoticed: a server responds to the last part of a body while the goroutine that sends it has not run again.
// The body is whole, and the client's connection can carry another request. A part that the client has not sent is not waited for.
func TestResponseBeforeTheUploadHasNoticed(t *testing.T) {
	t.Parallel()
	to := slow{make(chan struct{})}
	var u Upload
	u.Start(one{}, to)
	for !u.ending.Load() {
		runtime.Gosched()
	}
	time.AfterFunc(20*time.Millisecond, func() { close(to.allowed) })
	if !u.finished(0, time.Minute) {
		t.Error("the body was not whole")
	}
	u.Stop()
	u.Reset()
	u.Start(&parts{n: 1, more: func(c <-chan struct{}) (bool, error) { <-c; return false, io.EOF }, interrupted: make(chan struct{})}, &sink{room: 9})
	if u.finished(0, time.Hour) {
		t.Error("a body that the client has not sent is whole")
	}
	u.Stop()
}

// TestEndsOfUploads: who is to blame for the end of an upload, and what the server sees of it: a part of a body must not look whole, and
// the response of a server that takes no more can be read.
func TestEndsOfUploads(t *testing.T) {
	t.Parallel()
	malformed, other := &h1.Error{What: "malformed"}, errors.New("a fault of the source")
	fails := func(err error) func(<-chan struct{}) (bool, error) {
		return func(<-chan struct{}) (bool, error) { return false, err }
	}
	for label, tt := range map[string]struct {
		room           int
		more           func(<-chan struct{}) (bool, error)
		whole, aborted bool
		stop           bool // it does not end by itself
		fault          error
	}{
		"whole":            {room: 9, more: func(<-chan struct{}) (bool, error) { return true, nil }, whole: true},
		"malformed":        {room: 9, more: fails(malformed), aborted: true, fault: malformed},
		"the client left":  {room: 9, more: fails(io.ErrUnexpectedEOF), aborted: true, fault: ErrClientGone},
		"a fault":          {room: 9, more: fails(other), aborted: true, fault: other},
		"a panic":          {room: 9, more: func(<-chan struct{}) (bool, error) { panic("in the source") }, aborted: true, fault: ErrFault},
		"unwanted":         {room: 9, more: fails(ErrUnwanted)},
		"no room":          {room: 2, more: fails(other)},
		"nothing comes":    {room: 9, more: func(c <-chan struct{}) (bool, error) { <-c; return false, other }, stop: true, aborted: true},
		"malformed at end": {room: 9, more: func(c <-chan struct{}) (bool, error) { <-c; return false, malformed }, stop: true, aborted: true, fault: malformed},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			from, to := &parts{n: 3, more: tt.more, interrupted: make(chan struct{})}, &sink{room: tt.room}
			var u Upload
			if u.Start(from, to); !u.Running() {
				t.Error("not running")
			}
			if !tt.stop {
				<-u.done
			}
			if whole, idle := u.Finished(), u.Idle(); whole != tt.whole || idle == tt.stop {
				t.Errorf("whole %v, idle %v", whole, idle)
			}
			if u.Stop(); u.Running() || !u.Idle() {
				t.Error("still running")
			}
			if err := u.Fault(); !errors.Is(err, tt.fault) || to.aborted.Load() != tt.aborted || from.panicked.Load() != errors.Is(tt.fault, ErrFault) {
				t.Errorf("fault %v, aborted %v, panicked %v", err, to.aborted.Load(), from.panicked.Load())
			}
			if u.Content != 3 && tt.room > 3 || u.Progress().IsZero() {
				t.Errorf("%d bytes, progress %v", u.Content, u.Progress())
			}
		})
	}
}
