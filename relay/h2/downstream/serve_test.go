package downstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fields returns the fields of a response or of trailers, given as names and values in turn.
func fields(text ...string) (list []hpack.HeaderField) {
	for i := 0; i < len(text); i += 2 {
		list = append(list, hpack.HeaderField{Name: text[i], Value: text[i+1]})
	}
	return list
}

// hello answers every request.
func hello(s *Stream) {
	_ = s.WriteHeader(200, nil, false)
	_, _ = io.WriteString(s, "hello")
	_ = s.CloseWrite(nil)
}

// echo answers with the body and the trailers of the request.
func echo(s *Stream) {
	_ = s.WriteHeader(200, nil, false)
	buf := make([]byte, 1000)
	for {
		n, err := s.Read(buf)
		if _, failed := s.Write(buf[:n]); failed != nil {
			return
		}
		_ = s.Flush()
		if errors.Is(err, io.EOF) {
			_ = s.CloseWrite(s.Trailers())
			return
		}
		if err != nil {
			return
		}
	}
}

// TestOneWriteForAResponse: head, content and end leave together, as one DATA frame that ends the stream.
func TestOneWriteForAResponse(t *testing.T) {
	served(t, hello, func(p *peer) {
		before := p.writes
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		if n := p.writes - before; n != 1 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestWindows: DATA follows the client's windows, which may change at any time and become negative (6.9).
func TestWindows(t *testing.T) {
	first := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n} }
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = io.WriteString(s, "0123456789")
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		_ = p.framer.WriteSettings(first(9), first(3)) // a setting twice: the last one counts
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 DATA 012")
		_ = p.framer.WriteSettings(first(4))
		p.expect("1 DATA 3")
		_ = p.framer.WriteSettings(first(1))
		_ = p.framer.WriteWindowUpdate(1, 3)
		p.expect()
		_ = p.framer.WriteWindowUpdate(1, 1)
		p.expect("1 DATA 4")
		_ = p.framer.WriteWindowUpdate(1, 100)
		p.expect("1 DATA 56789 end")
	})
}

// TestConnectionWindowIsShared: the streams use the connection's window in turn.
func TestConnectionWindowIsShared(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = s.Write(make([]byte, 40<<10))
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		for id := uint32(1); id < 20; id += 2 {
			p.ask(id, true, get()...)
		}
		ended := ends(p.frames())
		for range 10 * 40 {
			_ = p.framer.WriteWindowUpdate(0, 1<<10)
			synctest.Wait()
		}
		if ended += ends(p.frames()); ended != 10 {
			t.Errorf("%d streams ended", ended)
		}
	})
}

// ends counts the streams that end with one of the frames.
func ends(frames []string) (n int) {
	for _, f := range frames {
		if strings.HasSuffix(f, " end") {
			n++
		}
	}
	return n
}

// TestTrailersBothWays echoes a body of several frames, some of them padded, and its trailers.
func TestTrailersBothWays(t *testing.T) {
	served(t, echo, func(p *peer) {
		p.ask(1, false, get()...)
		_ = p.framer.WriteDataPadded(1, false, []byte("one"), make([]byte, 100))
		p.expect("1 HEADERS :status=200", "1 DATA one")
		_ = p.framer.WriteData(1, false, []byte("two"))
		p.expect("1 DATA two")
		p.ask(1, true, "x-sum", "6")
		p.expect("1 HEADERS x-sum=6 end")
	})
}

// TestLongUpload: the windows of the client are filled again as the handler reads.
func TestLongUpload(t *testing.T) {
	total := 0
	served(t, func(s *Stream) {
		n, err := io.Copy(io.Discard, s)
		if total = int(n); err != nil {
			t.Error(err)
		}
		hello(s)
	}, func(p *peer) {
		p.ask(1, false, get()...)
		for range 4 * ConnWindow / 10_000 {
			_ = p.framer.WriteDataPadded(1, false, make([]byte, 9_000), make([]byte, 200))
			synctest.Wait()
		}
		_ = p.framer.WriteData(1, true, nil)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		if want := 4 * ConnWindow / 10_000 * 9_000; total != want {
			t.Errorf("%d of %d bytes", total, want)
		}
	})
}

// TestInterimResponses: 1xx heads come before the final one, and are refused after it.
func TestInterimResponses(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(100, nil, false)
		_ = s.WriteHeader(103, fields("link", "</x>"), false)
		_ = s.Flush()
		_ = s.WriteHeader(200, nil, true)
		if s.WriteHeader(103, nil, false) == nil || s.WriteHeader(200, nil, false) == nil {
			t.Error("a second head was taken")
		}
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=100", "1 HEADERS :status=103 link=</x>", "1 HEADERS :status=200 end")
	})
}

// TestFieldsThatAreNotAllowed are left out of responses.
func TestFieldsThatAreNotAllowed(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, fields("Upper", "x", "a b", "x", "", "x", "x", "y\r\nz", "ok", "1"), true)
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200 ok=1 end")
	})
}

// TestExtendedConnect opens a tunnel inside a stream (RFC 8441), which the SETTINGS offer.
func TestExtendedConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		var protocol string
		p.serve(func(s *Stream) { protocol = s.Protocol; echo(s) })
		p.greet()
		synctest.Wait()
		if connect := []byte{0, 8, 0, 0, 0, 1}; !bytes.Contains(p.in.Bytes(), connect) {
			t.Error("it is not on offer")
		}
		p.frames()
		p.ask(1, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "example.com", ":path", "/chat")
		_ = p.framer.WriteData(1, false, []byte("ping"))
		p.expect("1 HEADERS :status=200", "1 DATA ping")
		_ = p.framer.WriteData(1, true, nil)
		p.expect("1 DATA  end")
		if protocol != "websocket" {
			t.Error(protocol)
		}
		p.leave()
	})
}

// TestHandlersThatBreakOff: a handler that returns without ending its response resets the stream. A panic ends the connection.
func TestHandlersThatBreakOff(t *testing.T) {
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		if s.Path == "/code" {
			s.Reset(http2.ErrCodeRefusedStream)
		}
	}, func(p *peer) {
		p.ask(1, true, get()...)
		p.expect("1 HEADERS :status=200", "1 RST_STREAM INTERNAL_ERROR")
		p.ask(3, true, append(get()[:6], ":path", "/code")...)
		p.expect("3 HEADERS :status=200", "3 RST_STREAM REFUSED_STREAM")
	})
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		panicked := 0
		p.serveBy(func(nc net.Conn) {
			Serve(t.Context(), nc, Config{
				Handler: func(*Stream) { panic("x") }, Refused: p.told, Panicked: func(any) { panicked++ }, Idle: time.Minute,
			})
		})
		p.greet()
		p.ask(1, true, get()...)
		synctest.Wait()
		if !p.ended || panicked != 1 {
			t.Errorf("ended %v, %d panics", p.ended, panicked)
		}
	})
}

// TestResetByTheClient ends reads, writes and the context of the handler.
func TestResetByTheClient(t *testing.T) {
	for name, wait := range map[string]func(*Stream) error{
		"read":    func(s *Stream) error { _, err := s.Read(make([]byte, 1)); return err },
		"write":   func(s *Stream) error { _, err := s.Write(make([]byte, 1<<20)); return err },
		"context": func(s *Stream) error { <-s.Context().Done(); return s.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			var got error
			served(t, func(s *Stream) {
				_ = s.WriteHeader(200, nil, false)
				_ = s.Flush()
				got = wait(s)
			}, func(p *peer) {
				p.ask(1, false, get()...)
				p.frames()
				if got != nil {
					t.Fatal("it did not wait")
				}
				_ = p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
				p.expect()
				var reset http2.StreamError
				if !errors.Is(got, context.Canceled) && (!errors.As(got, &reset) || reset.Code != http2.ErrCodeCancel) {
					t.Error(got)
				}
			})
		})
	}
}

// TestLargeResponseHead: a large response head is sent in several frames.
func TestLargeResponseHead(t *testing.T) {
	served(t, func(s *Stream) { _ = s.WriteHeader(200, fields("x", strings.Repeat("y", 100<<10)), true) }, func(p *peer) {
		p.ask(1, true, get()...)
		if got := p.frames(); len(got) != 1 || got[0] != "1 HEADERS :status=200 x="+strings.Repeat("y", 100<<10)+" end" {
			t.Errorf("%.100q", got)
		}
	})
}
