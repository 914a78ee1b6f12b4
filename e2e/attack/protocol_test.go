package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// recordConn rewrites the data before the first read, a ClientHello in TLS records, into records with a given payload
// and segments of a given size. Later data passes unchanged.
type recordConn struct {
	net.Conn
	pieces
	sent  atomic.Bool
	hello int // its length
}

// pieces are the sizes of records and segments; 0 keeps them.
type pieces struct{ payload, segment int }

func (c *recordConn) Read(p []byte) (int, error) {
	c.sent.Store(true)
	return c.Conn.Read(p)
}

func (c *recordConn) Write(p []byte) (int, error) {
	if c.sent.Load() {
		return c.Conn.Write(p)
	}
	c.hello += len(p)
	out := p
	if c.payload > 0 {
		out = nil
		for message := payloads(p); len(message) > 0; {
			n := min(c.payload, len(message))
			out = append(out, 22, 3, 1, byte(n>>8), byte(n))
			out, message = append(out, message[:n]...), message[n:]
		}
	}
	for step := max(c.segment, 1); len(out) > 0; {
		if c.segment == 0 {
			step = len(out)
		}
		n := min(step, len(out))
		if _, err := c.Conn.Write(out[:n]); err != nil {
			return 0, err
		}
		out = out[n:]
	}
	return len(p), nil
}

// payloads joins the payloads of TLS records.
func payloads(records []byte) (all []byte) {
	for len(records) >= 5 {
		n := 5 + int(binary.BigEndian.Uint16(records[3:]))
		all, records = append(all, records[5:n]...), records[n:]
	}
	return all
}

// manyProtocols returns an ALPN list that makes a ClientHello larger than two records.
func manyProtocols() []string {
	protocols := []string{"http/1.1"}
	for range 160 {
		protocols = append(protocols, strings.Repeat("x", 250))
	}
	return protocols
}

// TestAttackClientHelloInPieces sends ClientHellos in forms where a reader might stop before the name.
func TestAttackClientHelloInPieces(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	for label, shape := range map[string]struct {
		pieces pieces
		alpn   []string
		min    int // minimum length of the ClientHello
	}{
		"one-byte segments":           {pieces: pieces{segment: 1}},
		"one-byte records":            {pieces: pieces{payload: 1}},
		"records that split a header": {pieces: pieces{payload: 3, segment: 7}},
		"larger than two records":     {alpn: manyProtocols(), min: 32 << 10},
		"large in small segments":     {pieces: pieces{segment: 1000}, alpn: manyProtocols(), min: 32 << 10},
		"post-quantum key share":      {min: 1184},
	} {
		t.Run(label, func(t *testing.T) {
			in := in.On(t)
			for _, network := range []string{"ip4", "ip6"} {
				hello := func(host string) (*recordConn, *tls.Conn) {
					c := &recordConn{Conn: in.Dial(netip.AddrPortFrom(in.Resolve(host, network), 443)), pieces: shape.pieces}
					_ = c.SetDeadline(time.Now().Add(harness.Patience))
					return c, tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: shape.alpn})
				}
				for _, host := range []string{"api.example.com", "www.example.com"} {
					c, s := hello(host)
					res, err := get(s, host, "/pieces")
					if err != nil || res.StatusCode != 200 {
						t.Fatalf("%s over %s: %v %v", host, network, res, err)
					}
					if c.hello < shape.min {
						t.Errorf("the ClientHello had %d bytes only", c.hello)
					}
				}
				since := time.Now()
				c, s := hello("evil.example.net")
				if err := s.Handshake(); err == nil || !strings.Contains(err.Error(), "access denied") {
					t.Errorf("evil.example.net over %s: %v", network, err)
				}
				c.Close()
				if e := in.Denied(since, policy.StageConn, name.ReasonNotAllowed); e.Name != "evil.example.net" {
					t.Errorf("decision %+v", e)
				}
			}
		})
	}
	w.NothingReached("evil.example.net")
	for _, r := range in.Requests("api.example.com", "/pieces") {
		if r.Header.Get("X-Key") != harness.Canary {
			t.Errorf("not intercepted: %+v", r)
		}
	}
}

// get makes one GET request over a connection.
func get(c net.Conn, host, path string) (*http.Response, error) {
	transport := &http.Transport{
		DialTLSContext: onceDial(c), DialContext: onceDial(c), DisableCompression: true, DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	scheme := "http://"
	if _, ok := c.(*tls.Conn); ok {
		scheme = "https://"
	}
	res, err := (&http.Client{Transport: transport, Timeout: harness.Patience, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}).Get(scheme + host + path)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res, err
}

// hello builds a ClientHello in one record. A nil versions leaves the extension out, as TLS 1.0 to 1.2 do.
type hello struct {
	version  uint16
	versions []uint16
	names    []string // in one server_name extension
	doubled  bool     // the extension occurs twice
}

func (h hello) String() string {
	u16 := func(b []byte, v int) []byte { return binary.BigEndian.AppendUint16(b, uint16(v)) }
	sized := func(b, content []byte) []byte { return append(u16(b, len(content)), content...) }
	var names, extensions []byte
	for _, n := range h.names {
		names = sized(append(names, 0), []byte(n))
	}
	for range map[bool]int{false: min(1, len(h.names)), true: 2}[h.doubled] {
		extensions = sized(u16(extensions, 0), sized(nil, names))
	}
	extensions = sized(u16(extensions, 10), sized(nil, []byte{0, 23, 0, 29}))                                         // groups
	extensions = sized(u16(extensions, 13), sized(nil, []byte{4, 3, 8, 4, 4, 1}))                                     // signatures
	extensions = sized(u16(extensions, 51), sized(nil, append([]byte{0, 29, 0, 32}, bytes.Repeat([]byte{9}, 32)...))) // key share
	if h.versions != nil {
		list := []byte{byte(2 * len(h.versions))}
		for _, v := range h.versions {
			list = u16(list, int(v))
		}
		extensions = sized(u16(extensions, 43), list)
	}
	body := u16(nil, int(h.version))
	body = append(body, bytes.Repeat([]byte{7}, 32)...)                         // random
	body = append(body, 0)                                                      // session
	body = sized(body, []byte{0x13, 1, 0xc0, 0x2b, 0xc0, 0x2f, 0, 0x2f, 0, 10}) // suites
	body = append(body, 1, 0)                                                   // compression
	body = sized(body, extensions)
	message := append([]byte{1, 0}, u16(nil, len(body))...)
	return string(sized([]byte{22, 3, 1}, append(message, body...)))
}

// sslv2 is an SSL 2.0 ClientHello, which old servers accept as the start of SSL 3 or TLS 1.0.
const sslv2 = "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10\x01\x00\x80\x03\x00\x80\x07\x00\xc0\x06\x00\x40\x02\x00\x80\x04\x00\x80" +
	"0123456789abcdef"

// strangeFirst are first messages that name no host reliably, to an address whose names are allowed. alert marks
// messages in TLS, which are answered with a TLS alert.
var strangeFirst = map[string]struct {
	text   string
	alert  bool
	reason name.Reason
}{
	"no SNI":               {hello{0x303, []uint16{0x304, 0x303}, nil, false}.String(), true, name.ReasonNoName},
	"SNI with an IPv4":     {hello{0x303, []uint16{0x304, 0x303}, []string{"198.51.100.11"}, false}.String(), true, name.ReasonNoName},
	"SNI with an IPv6":     {hello{0x303, []uint16{0x304, 0x303}, []string{"2001:db8:1::11"}, false}.String(), true, name.ReasonNoName},
	"SNI with a NUL":       {hello{0x303, []uint16{0x304}, []string{"www.example.com\x00.evil.net"}, false}.String(), true, name.ReasonNoName},
	"SNI with a port":      {hello{0x303, []uint16{0x304}, []string{"www.example.com:443"}, false}.String(), true, name.ReasonNoName},
	"SNI of a number":      {hello{0x303, []uint16{0x304}, []string{"0xa9fea9fe"}, false}.String(), true, name.ReasonNoName},
	"two SNI names":        {hello{0x303, []uint16{0x304}, []string{"www.example.com", "evil.example.net"}, false}.String(), true, name.ReasonProtocol},
	"two SNI extensions":   {hello{0x303, []uint16{0x304}, []string{"www.example.com"}, true}.String(), true, name.ReasonProtocol},
	"SNI with two dots":    {hello{0x303, []uint16{0x304}, []string{"www.example.com.."}, false}.String(), true, name.ReasonProtocol},
	"SNI with a final dot": {hello{0x303, []uint16{0x304}, []string{"evil.example.net."}, false}.String(), true, name.ReasonNotAllowed},
	"TLS 1.0":              {hello{0x301, nil, []string{"www.example.com"}, false}.String(), true, name.ReasonProtocol},
	"TLS 1.1":              {hello{0x302, nil, []string{"www.example.com"}, false}.String(), true, name.ReasonProtocol},
	"TLS 1.1 by extension": {hello{0x303, []uint16{0x302}, []string{"www.example.com"}, false}.String(), true, name.ReasonProtocol},
	"no handshake message": {"\x16\x03\x01\x00\x04\x02\x00\x00\x00", true, name.ReasonProtocol},
	"hello of 16 MiB":      {"\x16\x03\x01\x40\x00\x01\xff\xff\xff", true, name.ReasonProtocol},
	"empty records":        {strings.Repeat("\x16\x03\x01\x00\x00", 1000), true, name.ReasonProtocol},
	"SSL 2.0":              {sslv2, false, name.ReasonNoName},
	"SSH":                  {"SSH-2.0-OpenSSH_9.9\r\n", false, name.ReasonNoName},
	"SMTP":                 {"EHLO www.example.com\r\n", false, name.ReasonNoName},
	"FTP":                  {"USER anonymous\r\n", false, name.ReasonNoName},
	"raw bytes":            {"\x00\x01\x02\x03www.example.com", false, name.ReasonNoName},
	"HTTP/2 in the clear":  {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, name.ReasonNoName},
	"HTTP/0.9":             {"GET /\r\n", false, name.ReasonNoName},
	"SOCKS 5":              {"\x05\x01\x00", false, name.ReasonNoName},
}

func TestAttackFirstBytesThatNameNoHost(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("www.example.com", "api.example.com")}))
	byAddress := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"api.example.com"},
		"allowed_cidrs": []string{w.V4("www.example.com").String() + "/32"},
	}}))
	for name, first := range strangeFirst {
		ok := t.Run(name, func(t *testing.T) {
			in := in.On(t)
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 443), netip.AddrPortFrom(in.Resolve("www.example.com", "ip6"), 443),
				netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 80),
			} {
				since := time.Now()
				answer, reset := harness.SendAndReadAll(in.Dial(to), first.text)
				if first.alert && answer != harness.AlertDenied || !first.alert && (answer != "" || !reset) {
					t.Fatalf("%v answered %q (reset: %v)", to, answer, reset)
				}
				if e := in.Denied(since, policy.StageConn, first.reason); e.Addr != to.Addr() || e.Port != to.Port() {
					t.Errorf("decision %+v", e)
				}
			}
		})
		if !ok {
			return // an open connection takes long to test
		}
	}
	w.NothingReached("www.example.com")
	// An address rule needs no name: the same bytes arrive.
	answer, _ := harness.SendAndReadAll(byAddress.Dial(netip.AddrPortFrom(w.V4("www.example.com"), 80)), "SSH-2.0-OpenSSH_9.9\r\n\r\n")
	if harness.Contains(t, answer, "400 Bad Request"); len(w.Net.Received("www.example.com", testnet.Of(testnet.Connection))) != 1 {
		t.Error("an allowed address was not reached")
	}
}

// onceDial returns one connection to the first caller.
func onceDial(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		if c == nil {
			return nil, net.ErrClosed
		}
		once := c
		c = nil
		return once, nil
	}
}
