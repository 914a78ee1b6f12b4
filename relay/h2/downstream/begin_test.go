package downstream

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestGoroutinesAreKeptForAWhile: the goroutine of a request that has ended waits for another request, and its memory is
// accounted for, until it was not needed for a while.
func TestGoroutinesAreKeptForAWhile(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(time.Millisecond); hello(s) }, func(p *peer) {
		id := uint32(1)
		for _, n := range []int64{5, 3, 5} {
			for range n {
				p.ask(id, true, get()...)
				id += 2
			}
			time.Sleep(lullTime / 2)
			if got := ends(p.frames()); got != int(n) {
				t.Errorf("%d responses of %d", got, n)
			}
			if held := p.memory.InUse(); held != 5*stackCost {
				t.Errorf("%d bytes are accounted for after %d requests", held, n)
			}
		}
		time.Sleep(2 * lullTime)
		if held := p.memory.InUse(); held != 0 {
			t.Errorf("%d bytes are accounted for later", held)
		}
		p.ask(id, true, get()...)
		time.Sleep(time.Second)
		p.expect(fmt.Sprintf("%d HEADERS :status=200", id), fmt.Sprintf("%d DATA hello end", id))
	})
}

// TestGoroutinesEndBesideALongRequest: a request in progress does not keep idle goroutines from ending.
func TestGoroutinesEndBesideALongRequest(t *testing.T) {
	long := func(s *Stream) {
		if s.Path == "/long" {
			<-s.Context().Done()
			return
		}
		time.Sleep(time.Millisecond)
		hello(s)
	}
	served(t, long, func(p *peer) {
		p.ask(1, true, ":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/long")
		for id := uint32(3); id < 50; id += 2 {
			p.ask(id, true, get()...)
		}
		time.Sleep(3 * lullTime)
		if held := p.memory.InUse(); held > stackCost {
			t.Errorf("%d bytes are accounted for beside one request", held)
		}
	})
}

// TestHeaderBlocksMustEnd: an incomplete header block keeps its memory for a limited time, whatever else the connection does.
func TestHeaderBlocksMustEnd(t *testing.T) {
	half := func(p *peer, id uint32) {
		block := p.encode(get()...)
		_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:4], EndStream: true})
		time.Sleep(blockTime / 2)
		if id == 3 {
			_ = p.framer.WriteContinuation(id, true, block[4:])
		}
	}
	served(t, func(s *Stream) { <-s.Context().Done() }, func(p *peer) {
		p.ask(1, true, get()...) // in progress during the others
		half(p, 3)
		time.Sleep(2 * blockTime)
		if held := p.memory.InUse(); held != 0 {
			t.Errorf("%d bytes are accounted for after the end", held)
		}
		half(p, 5)
		if held := p.memory.InUse(); held == 0 {
			t.Error("nothing is accounted for before the end")
		}
		time.Sleep(blockTime)
		if held := p.memory.InUse(); held != 0 {
			t.Errorf("%d bytes are accounted for without an end", held)
		}
	})
}

// TestGoroutinesAreNotKeptWithoutMemory: without memory for idle goroutines, requests are still served.
func TestGoroutinesAreNotKeptWithoutMemory(t *testing.T) {
	served(t, hello, func(p *peer) {
		taken := 1 << 30
		for ; !p.memory.Acquire(0, taken); taken /= 2 {
		}
		for p.memory.Acquire(0, stackCost/2) {
			taken += stackCost / 2
		}
		before := p.memory.InUse()
		for id := uint32(1); id < 20; id += 2 {
			p.ask(id, true, get()...)
			p.expect(fmt.Sprintf("%d HEADERS :status=200", id), fmt.Sprintf("%d DATA hello end", id))
		}
		if held := p.memory.InUse(); held != before {
			t.Errorf("%d bytes more are accounted for", held-before)
		}
	})
}

// TestRequestBeginsWithItsBody: a body that arrives with its head can be read when the handler begins.
func TestRequestBeginsWithItsBody(t *testing.T) {
	type seen struct {
		n     int
		whole bool
	}
	got := make(chan seen, 2)
	served(t, func(s *Stream) {
		n, whole := s.Whole()
		got <- seen{n, whole}
		hello(s)
	}, func(p *peer) {
		var both bytes.Buffer
		w := http2.NewFramer(&both, nil)
		_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(get()...), EndHeaders: true})
		_ = w.WriteData(1, true, []byte("body"))
		_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(get()...), EndHeaders: true})
		_, _ = p.conn.Write(both.Bytes())
		p.frames()
		first, second := <-got, <-got
		if !first.whole {
			first, second = second, first
		}
		if first != (seen{4, true}) || second != (seen{0, false}) {
			t.Errorf("%v, %v", first, second)
		}
	})
}

// TestContinueDoesNotWait calls Continue while the response waits for its window, and its batch is full.
func TestContinueDoesNotWait(t *testing.T) {
	const part = 16375
	asked, wrote := make(chan struct{}), make(chan error, 1)
	served(t, func(s *Stream) {
		s.Continue()
		_ = s.WriteHeader(200, nil, false)
		_, _ = s.Write(make([]byte, part))
		_, _ = s.Write(make([]byte, part))
		go func() {
			defer close(asked)
			s.Continue()
		}()
		_, err := s.Write(make([]byte, 1000)) // beyond the client's window
		wrote <- err
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		_ = p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * part})
		p.ask(1, false, get()...)
		<-asked
		_ = p.framer.WriteWindowUpdate(1, 1<<20)
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		if got := p.frames(); len(got) == 0 || !slices.Contains(got, "1 HEADERS :status=100") {
			t.Errorf("%.300q", got)
		}
	})
}
