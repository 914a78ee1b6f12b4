package downstream

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// TestStalledBodies: a handler with a read limit gets an error for a body that stalls for so long; without a limit it waits.
func TestStalledBodies(t *testing.T) {
	failed := make(chan error, 2)
	served(t, func(s *Stream) {
		if s.Path == "/" {
			s.Limit(time.Minute, 0)
		}
		_, err := io.ReadAll(s)
		failed <- err
		hello(s)
	}, func(p *peer) {
		p.ask(1, false, get()...)
		for range 3 {
			time.Sleep(50 * time.Second)
			_ = p.framer.WriteData(1, false, []byte("x"))
		}
		p.expect()
		time.Sleep(time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		if err := <-failed; !errors.Is(err, ErrLate) {
			t.Error(err)
		}
		_ = p.framer.WriteData(1, true, nil)
		p.ask(3, false, ":method", "POST", ":scheme", "https", ":authority", "example.com", ":path", "/patient")
		time.Sleep(time.Hour)
		_ = p.framer.WriteData(3, true, nil)
		p.expect("3 HEADERS :status=200", "3 DATA hello end")
		if err := <-failed; err != nil {
			t.Error(err)
		}
	})
}

// TestStalledReaders: a response is reset if the client does not read for the handler's write limit. It continues if the client
// reads a little now and then.
func TestStalledReaders(t *testing.T) {
	failed := make(chan error, 1)
	served(t, func(s *Stream) {
		s.Limit(0, time.Minute)
		_ = s.WriteHeader(200, nil, false)
		_, err := s.Write(make([]byte, 10))
		failed <- err
	}, func(p *peer) {
		_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		p.ask(1, true, get()...)
		p.frames()
		for range 3 {
			time.Sleep(50 * time.Second)
			_ = p.framer.WriteWindowUpdate(1, 1)
		}
		if got := p.frames(); len(got) != 3 {
			t.Errorf("%q", got)
		}
		time.Sleep(time.Minute)
		p.expect("1 RST_STREAM CANCEL")
		if err := <-failed; err == nil {
			t.Error("the write went on")
		}
	})
}

// TestDrain: a drained connection completes its requests, and accepts no others.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		ctx, drain := context.WithCancel(t.Context())
		p.drain = ctx
		p.serve(func(s *Stream) { time.Sleep(time.Minute); hello(s) })
		p.greet()
		p.ask(1, true, get()...)
		p.frames()
		drain()
		p.expect("GOAWAY 1 NO_ERROR")
		p.ask(3, true, get()...)
		time.Sleep(time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		time.Sleep(2 * goAwayTime)
		p.leave()
	})
}

// TestArrived: a handler can find out how much of a body has arrived.
func TestArrived(t *testing.T) {
	type state struct {
		n     int
		whole bool
	}
	states := make(chan state, 2)
	served(t, func(s *Stream) {
		for range 2 {
			time.Sleep(time.Second)
			n, whole := s.Arrived()
			states <- state{n, whole}
		}
		hello(s)
	}, func(p *peer) {
		p.ask(1, false, get()...)
		_ = p.framer.WriteData(1, false, []byte("abc"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := <-states; got != (state{3, false}) {
			t.Errorf("%+v", got)
		}
		_ = p.framer.WriteData(1, true, []byte("de"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := <-states; got != (state{5, true}) {
			t.Errorf("%+v", got)
		}
	})
}
