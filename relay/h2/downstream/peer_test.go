package downstream

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/relay/h2"
)

// peer is a client that sends arbitrary frames. It is made in a bubble of package synctest, and reads until its read deadline
// is set.
type peer struct {
	t      *testing.T
	conn   net.Conn
	memory *memory.Account
	framer *http2.Framer // writes
	block  bytes.Buffer
	enc    *hpack.Encoder

	mu      sync.Mutex
	in      bytes.Buffer // bytes read, but not yet returned by frames
	writes  int          // of the server
	refused []Refusal
	ended   bool // Serve has returned
	dec     *hpack.Decoder
	partial []byte
	opened  uint32 // the highest stream of a program
	drain   context.Context
}

// counted counts the writes of the server.
type counted struct {
	net.Conn
	p *peer
}

func (c counted) Write(b []byte) (int, error) {
	c.p.mu.Lock()
	c.p.writes++
	c.p.mu.Unlock()
	return c.Conn.Write(b)
}

// served starts a server in a bubble and runs test with its client, which has sent the preface and SETTINGS.
func served(t *testing.T, handler func(*Stream), test func(*peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := unserved(t)
		p.serve(handler)
		p.greet()
		p.frames()
		test(p)
		p.leave()
	})
}

// unserved returns a client without a server.
func unserved(t *testing.T) *peer { return &peer{t: t, dec: hpack.NewDecoder(h2.TableSize, nil)} }

// serve starts the server.
func (p *peer) serve(handler func(*Stream)) {
	p.memory = memory.New(1<<30, 1<<30).Account("box")
	p.serveBy(func(nc net.Conn) {
		Serve(p.t.Context(), nc, Config{
			Drain:   p.drain,
			Handler: handler, Refused: p.told, Panicked: func(v any) { p.t.Errorf("panic: %v", v) },
			Memory: p.memory, Idle: time.Minute,
		})
	})
}

func (p *peer) told(r Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = append(p.refused, r)
}

func (p *peer) serveBy(serve func(net.Conn)) {
	client, server := net.Pipe()
	p.conn, p.framer = client, http2.NewFramer(client, nil)
	p.framer.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	go func() {
		serve(counted{server, p})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = true
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			p.mu.Lock()
			p.in.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
}

// greet sends the preface and the first SETTINGS.
func (p *peer) greet(settings ...http2.Setting) {
	_, _ = io.WriteString(p.conn, http2.ClientPreface)
	_ = p.framer.WriteSettings(settings...)
	_ = p.framer.WriteSettingsAck()
}

// leave closes the connection, and waits for the server's end.
func (p *peer) leave() {
	_ = p.conn.Close()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.t.Error("the server has not ended")
	}
}

// encode returns a header block; fields are names and values in turn.
func (p *peer) encode(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into memory
	}
	return bytes.Clone(p.block.Bytes())
}

// get returns the fields of a GET request, followed by more.
func get(more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/"}, more...)
}

// ask sends a head in one frame, or several.
func (p *peer) ask(stream uint32, end bool, fields ...string) {
	block := p.encode(fields...)
	first := block[:min(len(block), 16<<10)]
	_ = p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(first) == len(block)})
	for rest := block[len(first):]; len(rest) > 0; {
		part := rest[:min(len(rest), 16<<10)]
		rest = rest[len(part):]
		_ = p.framer.WriteContinuation(stream, len(rest) == 0, part)
	}
}

// frames waits until all goroutines are blocked, and returns the frames that have arrived since the last call: their types,
// streams and main contents. SETTINGS and windows are left out.
func (p *peer) frames() (seen []string) {
	synctest.Wait()
	p.mu.Lock()
	in := append(p.partial, p.in.Bytes()...)
	p.in.Reset()
	p.mu.Unlock()
	rest := bytes.NewReader(in)
	r := http2.NewFramer(nil, rest)
	r.ReadMetaHeaders = p.dec
	for {
		whole := len(in) - rest.Len()
		f, err := r.ReadFrame()
		if err != nil {
			p.partial = bytes.Clone(in[whole:])
			return seen
		}
		if text := frameText(f); text != "" {
			seen = append(seen, text)
		}
	}
}

func frameText(f http2.Frame) (text string) {
	end := ""
	if (f.Header().Type == http2.FrameData || f.Header().Type == http2.FrameHeaders) && f.Header().Flags.Has(http2.FlagDataEndStream) {
		end = " end"
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		for _, h := range f.Fields {
			text += fmt.Sprintf(" %s=%s", h.Name, h.Value)
		}
		return fmt.Sprintf("%d HEADERS%s%s", f.StreamID, text, end)
	case *http2.DataFrame:
		if len(f.Data()) > 20 {
			return fmt.Sprintf("%d DATA %d bytes%s", f.StreamID, len(f.Data()), end)
		}
		return fmt.Sprintf("%d DATA %s%s", f.StreamID, f.Data(), end)
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("%d RST_STREAM %v", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %v", f.LastStreamID, f.ErrCode)
	case *http2.PingFrame:
		return "PING " + string(f.Data[:])
	}
	return ""
}

// expect compares the frames that have arrived with the wanted ones.
func (p *peer) expect(want ...string) {
	p.t.Helper()
	if got := p.frames(); fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Errorf("frames %q\nwant   %q", got, want)
	}
}

// expectRefused compares the reported refusals with the wanted ones.
func (p *peer) expectRefused(want ...string) {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []string
	for _, r := range p.refused {
		got = append(got, r.Why)
	}
	p.refused = nil
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Errorf("refusals %q\nwant     %q", got, want)
	}
}
