package downstream

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// TestMoreStreamsThanAllowed opens more concurrent requests than the SETTINGS allow: the excess is refused and reported, and may
// be repeated once others have ended.
func TestMoreStreamsThanAllowed(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(time.Second); hello(s) }, func(p *peer) {
		for id := uint32(1); id < 2*h2.Streams; id += 2 {
			p.ask(id, true, get()...)
		}
		p.ask(2*h2.Streams+1, true, get()...)
		p.expect(fmt.Sprintf("%d RST_STREAM REFUSED_STREAM", 2*h2.Streams+1))
		p.expectRefused("the stream is reset with REFUSED_STREAM: more requests at a time than allowed")
		time.Sleep(time.Second)
		if n := ends(p.frames()); n != h2.Streams {
			t.Errorf("%d responses", n)
		}
		p.ask(2*h2.Streams+3, true, get()...)
		time.Sleep(time.Second)
		p.expect(fmt.Sprintf("%d HEADERS :status=200", 2*h2.Streams+3), fmt.Sprintf("%d DATA hello end", 2*h2.Streams+3))
	})
}

// TestRapidReset opens and resets requests with slow handlers (CVE-2023-44487): no more handlers run than streams are allowed,
// and the connection ends.
func TestRapidReset(t *testing.T) {
	var running atomic.Int32
	served(t, func(*Stream) {
		running.Add(1)
		time.Sleep(time.Hour)
	}, func(p *peer) {
		id := uint32(1)
		for range h2.Streams + waitingMax + 1 {
			p.ask(id, true, get()...)
			_ = p.framer.WriteRSTStream(id, http2.ErrCodeCancel)
			synctest.Wait()
			id += 2
		}
		p.expect(fmt.Sprintf("GOAWAY %d ENHANCE_YOUR_CALM", id-2))
		if len(p.refused) != waitingMax+1 { // and one for the connection
			t.Errorf("%d refusals", len(p.refused))
		}
		if n := running.Load(); n != h2.Streams {
			t.Errorf("%d handlers at a time", n)
		}
		time.Sleep(time.Hour)
	})
}

// TestFloods sends an unlimited number of frames that request no work.
func TestFloods(t *testing.T) {
	for name, send := range map[string]func(p *peer) error{
		"SETTINGS": func(p *peer) error {
			return p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
		"PING":          func(p *peer) error { return p.framer.WritePing(false, [8]byte{}) },
		"PRIORITY":      func(p *peer) error { return p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"WINDOW_UPDATE": func(p *peer) error { return p.framer.WriteWindowUpdate(0, 1) },
		"RST_STREAM":    func(p *peer) error { return p.framer.WriteRSTStream(1, http2.ErrCodeCancel) },
		"unknown":       func(p *peer) error { return p.framer.WriteRawFrame(0xbe, 0, 0, nil) },
		"DATA":          func(p *peer) error { return p.framer.WriteData(3, false, nil) },
		"DATA at the end of a stream that was reset": func(p *peer) error { return p.framer.WriteData(5, true, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			served(t, func(s *Stream) { <-s.Context().Done() }, func(p *peer) {
				p.ask(1, true, get()...)
				p.ask(3, false, get()...)
				p.ask(5, false, get("connection", "close")...)
				p.expect("5 RST_STREAM PROTOCOL_ERROR")
				p.refused = nil
				for range 20_000 {
					if send(p) != nil {
						break
					}
				}
				// Which of the two limits is met first is up to the scheduler.
				got := p.frames()
				if len(p.refused) != 1 || !p.refused[0].Flood && (p.refused[0].Why != "the connection is ended with ENHANCE_YOUR_CALM" ||
					got[len(got)-1] != "GOAWAY 5 ENHANCE_YOUR_CALM") {
					t.Errorf("%v %.200q", p.refused, got)
				}
			})
		})
	}
}

// TestWindowsOfAFastDownload answers each 2 KiB with two WINDOW_UPDATE frames, as Go's client does: that is no flood.
func TestWindowsOfAFastDownload(t *testing.T) {
	const size = 24 << 20
	served(t, func(s *Stream) {
		_ = s.WriteHeader(200, nil, false)
		_, _ = s.Write(make([]byte, size))
		_ = s.CloseWrite(nil)
	}, func(p *peer) {
		p.ask(1, true, get()...)
		for i := range size / (2 << 10) {
			if i%16 == 0 {
				synctest.Wait()
			}
			if p.framer.WriteWindowUpdate(1, 2<<10) != nil || p.framer.WriteWindowUpdate(0, 2<<10) != nil {
				t.Fatal("the connection was ended")
			}
		}
		got := p.frames()
		if last := got[len(got)-1]; !strings.HasSuffix(last, " end") {
			t.Error(last)
		}
	})
}

// TestClientThatDoesNotRead sends frames that need answers and does not read them: the queue of answers is bounded, and the
// connection ends.
func TestClientThatDoesNotRead(t *testing.T) {
	for name, send := range map[string]func(p *peer, id uint32){
		"PING":      func(p *peer, _ uint32) { _ = p.framer.WritePing(false, [8]byte{}) },
		"malformed": func(p *peer, id uint32) { p.ask(id, true, ":method", "GET") },
		"SETTINGS":  func(p *peer, _ uint32) { _ = p.framer.WriteSettings() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := deaf(t, hello)
				for id := uint32(1); id < 2*controlMax+100; id += 2 {
					send(p, id)
				}
				synctest.Wait()
				if !p.ended {
					t.Error("the connection goes on")
				}
				if n := len(p.refused); n == 0 || !p.refused[n-1].Flood {
					t.Errorf("%d refusals, none of a flood", n)
				}
				p.leave()
			})
		})
	}
}

// deaf returns a client that does not read.
func deaf(t *testing.T, handler func(*Stream)) *peer {
	p := unserved(t)
	p.serve(handler)
	p.greet()
	p.frames()
	_ = p.conn.SetReadDeadline(time.Now()) // ends its reader
	synctest.Wait()
	return p
}

// TestResponsesNobodyReads: handlers wait for their client, and the connection holds little more than a batch.
func TestResponsesNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var returned atomic.Int32
		var first atomic.Pointer[Stream]
		p := deaf(t, func(s *Stream) {
			first.Store(s)
			_ = s.WriteHeader(200, fields("x", strings.Repeat("y", 60<<10)), false)
			_, _ = s.Write(make([]byte, 1<<20))
			_ = s.CloseWrite(nil)
			returned.Add(1)
		})
		_ = p.framer.WriteWindowUpdate(0, 1<<30)
		for id := uint32(1); id < 2*h2.Streams; id += 2 {
			p.ask(id, true, get()...)
		}
		synctest.Wait()
		if n := returned.Load(); n != 0 {
			t.Errorf("%d handlers wrote all they had", n)
		}
		if n := len(first.Load().c.out.pending); n > batchMax+64<<10 {
			t.Errorf("%d bytes wait for a client that does not read", n)
		}
		p.leave()
		if n := returned.Load(); n != h2.Streams {
			t.Errorf("%d handlers ended with the connection", n)
		}
	})
}

// TestIdleConnections: an idle connection gets a GOAWAY, and is closed.
func TestIdleConnections(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(90 * time.Second); hello(s) }, func(p *peer) {
		p.ask(1, true, get()...)
		time.Sleep(2 * time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		time.Sleep(29 * time.Second)
		p.expect()
		time.Sleep(time.Second)
		p.expect("GOAWAY 1 NO_ERROR")
		p.ask(3, true, get()...) // too late
		_ = p.framer.WriteData(3, true, nil)
		p.expect()
		time.Sleep(goAwayTime)
		synctest.Wait()
		if !p.ended {
			t.Error("the connection goes on")
		}
	})
}

// TestClientThatLeaves: a client that sends a GOAWAY gets the responses to its requests.
func TestClientThatLeaves(t *testing.T) {
	served(t, func(s *Stream) { time.Sleep(time.Minute); hello(s) }, func(p *peer) {
		p.ask(1, true, get()...)
		_ = p.framer.WriteGoAway(0, http2.ErrCodeNo, nil)
		p.expect("GOAWAY 1 NO_ERROR")
		time.Sleep(time.Minute)
		p.expect("1 HEADERS :status=200", "1 DATA hello end")
		time.Sleep(goAwayTime)
		synctest.Wait()
		if !p.ended {
			t.Error("the connection goes on")
		}
	})
}

// TestSilentClients: a connection without the preface, or without SETTINGS, ends.
func TestSilentClients(t *testing.T) {
	for _, said := range []string{"", http2.ClientPreface[:20], http2.ClientPreface, http2.ClientPreface + "\x00\x00\x06"} {
		synctest.Test(t, func(t *testing.T) {
			p := unserved(t)
			p.serve(hello)
			_, _ = io.WriteString(p.conn, said)
			time.Sleep(prefaceTime)
			synctest.Wait()
			if !p.ended {
				t.Errorf("behind %q the connection goes on", said)
			}
		})
	}
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"} {
		synctest.Test(t, func(t *testing.T) {
			p := unserved(t)
			p.serve(hello)
			_, _ = io.WriteString(p.conn, said)
			p.expect("GOAWAY 0 PROTOCOL_ERROR")
			p.expectRefused("the connection is ended with PROTOCOL_ERROR")
			p.leave()
		})
	}
}

// TestNothingIsHeldWhileIdle: between requests a connection has no buffers and one goroutine.
func TestNothingIsHeldWhileIdle(t *testing.T) {
	var c *conn
	served(t, func(s *Stream) { c = s.c; echo(s) }, func(p *peer) {
		p.ask(1, false, get()...)
		_ = p.framer.WriteData(1, false, make([]byte, 10_000))
		_ = p.framer.WriteData(1, true, nil)
		p.frames()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.out.pending != nil || c.out.writing || len(c.streams) != 0 || c.running != 0 {
			t.Errorf("%d bytes to write, writing %v, %d streams, %d handlers", len(c.out.pending), c.out.writing, len(c.streams), c.running)
		}
	})
}
