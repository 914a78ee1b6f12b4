package harness

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Frames is an HTTP/2 client that can send arbitrary frames.
type Frames struct {
	T    *testing.T
	Conn net.Conn
	*http2.Framer
	Block   bytes.Buffer
	Encoder *hpack.Encoder
	Fields  map[uint32]map[string]string // of the responses, by stream
	Bodies  map[uint32]string

	WasReset map[uint32]int // number of resets per stream
}

// Frames speaks HTTP/2 to a host over an intercepted connection.
func (in *Intruder) Frames(host string) *Frames {
	in.T.Helper()
	c := in.TLS(in.DialHost(host, 443), host, "h2")
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		in.T.Fatalf("negotiated %q", p)
	}
	f := &Frames{T: in.T, Conn: c, Framer: http2.NewFramer(c, c), Fields: map[uint32]map[string]string{}, Bodies: map[uint32]string{},
		WasReset: map[uint32]int{}}
	f.Encoder = hpack.NewEncoder(&f.Block)
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		in.T.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		in.T.Fatal(err)
	}
	return f
}

// Field is a header field, pseudo-headers included: its name and its value.
type Field [2]string

// HPACK returns the field in the encoder's type.
func (f Field) HPACK() hpack.HeaderField { return hpack.HeaderField{Name: f[0], Value: f[1]} }

// Head returns the head of a request to a host. fields replace pseudo-headers of the same name or are appended.
func Head(host string, fields ...Field) []Field {
	out := []Field{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/"}}
	for _, f := range fields {
		replaced := false
		for i := range out {
			if out[i][0] == f[0] && strings.HasPrefix(f[0], ":") {
				out[i], replaced = f, true
			}
		}
		if !replaced {
			out = append(out, f)
		}
	}
	return out
}

// Send sends HEADERS, in as many frames as needed.
func (f *Frames) Send(stream uint32, end bool, fields ...Field) {
	f.Block.Reset()
	for _, h := range fields {
		_ = f.Encoder.WriteField(h.HPACK()) // into a buffer
	}
	block := f.Block.Bytes()
	n := min(len(block), 16<<10)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
	for block = block[n:]; err == nil && len(block) > 0; block = block[n:] {
		n = min(len(block), 16<<10)
		err = f.WriteContinuation(stream, n == len(block), block[:n])
	}
	if err != nil {
		f.Fields[stream] = map[string]string{"error": err.Error()}
	}
}

// Outcome reads until the stream has ended and returns the result: a status, "reset", or "closed" if the connection
// ended.
func (f *Frames) Outcome(stream uint32) string {
	_ = f.Conn.SetReadDeadline(time.Now().Add(Patience))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck() // the next read notices a closed connection
			}
		case *http2.MetaHeadersFrame:
			if f.Fields[frame.StreamID] == nil {
				f.Fields[frame.StreamID] = map[string]string{}
			}
			for _, h := range frame.Fields {
				f.Fields[frame.StreamID][h.Name] = h.Value
			}
		case *http2.DataFrame:
			f.Bodies[frame.StreamID] += string(frame.Data())
		case *http2.RSTStreamFrame:
			f.WasReset[frame.StreamID]++
			if frame.StreamID == stream && (f.Fields[stream] == nil || frame.ErrCode != http2.ErrCodeNo) {
				return "reset"
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return "closed"
			}
		}
		if h := frame.Header(); h.StreamID == stream && h.Flags.Has(http2.FlagDataEndStream) {
			return f.Fields[stream][":status"]
		}
	}
}
