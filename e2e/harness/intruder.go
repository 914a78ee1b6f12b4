package harness

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// Canary is the secret of the attack tests. It must reach its own host and no other place.
const Canary = "sk-canary-4f1d9a7c2b8e6035d1c7"

// AlertDenied is the TLS alert access_denied, which curl reports with exit status 35.
const AlertDenied = "\x15\x03\x03\x00\x02\x02\x31"

// Intruder opens sockets in the network namespace of a box and sends data that no library would.
type Intruder struct {
	*World
	Box   string
	Roots *x509.CertPool       // pool with the box's CA only
	DNS   string               // address and port of the box's DNS server
	Lag   func() time.Duration // longest scheduling delay since Intrude: see [Lag]
}

// Intrude returns an intruder in a box.
func (w *World) Intrude(box string) *Intruder {
	w.T.Helper()
	out, code := w.GatewayCommand("ca", "--box", box)
	in := &Intruder{World: w, Box: box, Roots: x509.NewCertPool(), DNS: "10.200.0.1:53", Lag: Lag(w.T)}
	if code != 0 || !in.Roots.AppendCertsFromPEM([]byte(out)) {
		w.T.Fatalf("gateway ca: %d %s", code, out)
	}
	return in
}

// On returns the same intruder for a subtest.
func (in *Intruder) On(t *testing.T) *Intruder {
	w, other := *in.World, *in
	w.T, other.World = t, &w
	return &other
}

// InNetNS runs f in the network namespace of the box. The sockets it opens stay there.
func (in *Intruder) InNetNS(f func() error) error {
	pins := "netns"
	if _, attached := in.foreign.Load(in.Box); attached {
		pins = "attached"
	}
	pin, err := os.Open(filepath.Join(lab.RunDir(in.Dir), pins, in.Box))
	if err != nil {
		return err
	}
	defer pin.Close()
	return InNamespace(pin, f)
}

// Connect dials an address from within the box. It fails the test if the test process runs out of file descriptors,
// which must not look like a refusal.
func (in *Intruder) Connect(to netip.AddrPort) (c net.Conn, err error) {
	err = in.InNetNS(func() (err error) {
		d := net.Dialer{Timeout: Patience}
		c, err = d.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		in.T.Errorf("connecting to %v: %v", to, err)
	}
	return c, err
}

// Dial is Connect for a connection that must succeed. The connection is closed when the test ends.
func (in *Intruder) Dial(to netip.AddrPort) net.Conn {
	in.T.Helper()
	c, err := in.Connect(to)
	if err != nil {
		in.T.Fatalf("connecting to %v: %v", to, err)
	}
	in.T.Cleanup(func() { c.Close() })
	return c
}

// DialHost connects to the address of a host in the box's DNS.
func (in *Intruder) DialHost(host string, port uint16) net.Conn {
	in.T.Helper()
	return in.Dial(netip.AddrPortFrom(in.Resolve(host, "ip4"), port))
}

// Resolve queries the box's DNS server. network is "ip4" or "ip6".
func (in *Intruder) Resolve(host, network string) netip.Addr {
	in.T.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = in.InNetNS(func() (err error) {
			c, err = new(net.Dialer).DialContext(ctx, network, in.DNS)
			return err
		})
		return c, err
	}}
	addrs, err := r.LookupNetIP(in.T.Context(), network, host+".")
	if err != nil {
		in.T.Fatal(err)
	}
	return addrs[0].Unmap()
}

// TLS opens a TLS connection to a host over c, verified as in the box, and fails the test if it cannot.
func (in *Intruder) TLS(c net.Conn, sni string, alpn ...string) *tls.Conn {
	in.T.Helper()
	s := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: in.Roots, NextProtos: alpn})
	_ = c.SetDeadline(time.Now().Add(Patience))
	if err := s.HandshakeContext(in.T.Context()); err != nil {
		in.T.Fatalf("handshake with %s: %v", sni, err)
	}
	return s
}

// SendAndReadAll sends text and returns all data received until the peer closes the connection. reset reports whether the peer
// reset it.
func SendAndReadAll(c net.Conn, text string) (answer string, reset bool) {
	_ = c.SetDeadline(time.Now().Add(Patience))
	_, err := io.WriteString(c, text) // the peer may close before it has read all of text
	answer, reset = ReadAll(c)
	return answer, reset || errors.Is(err, syscall.ECONNRESET) // reported only once
}

// ReadAll returns all data received until the peer closes the connection.
func ReadAll(c net.Conn) (answer string, reset bool) {
	data, err := io.ReadAll(c)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return string(data) + "(the connection stays open)", false
	case errors.Is(err, syscall.ECONNRESET):
		return string(data), true
	}
	return string(data), false
}

// Requests returns the requests that a host received for a path.
func (in *Intruder) Requests(host, path string) []testnet.Received {
	return in.Net.Received(host, testnet.Path(path))
}

// TLSUnchecked returns a TLS client that accepts any certificate.
func TLSUnchecked(c net.Conn, sni string) *tls.Conn {
	return tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
}

// Fetch sends one request on a new connection.
func (in *Intruder) Fetch(to netip.AddrPort, host string) error {
	c, err := in.Connect(to)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(Patience))
	s := TLSUnchecked(c, host)
	if err := s.Handshake(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s, "GET /bystander HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return err
	}
	answer, err := io.ReadAll(s)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		err = fmt.Errorf("answer %.80q", answer)
	}
	return err
}

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

// Exchange writes a request and reads the head and body of one response.
func Exchange(t *testing.T, c net.Conn, r *bufio.Reader, request string) (*http.Response, string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	if res.StatusCode == http.StatusSwitchingProtocols || method == "CONNECT" && res.StatusCode == 200 {
		return res, ""
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%.60q: %v", request, err)
	}
	return res, string(body)
}

// UpgradeHead is the head of a WebSocket request without its first line and Host.
const UpgradeHead = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
