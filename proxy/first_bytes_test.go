package proxy_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/peek/peektest"
	"boxgate/proxy/proxytest"
)

// Hosts of the table, which one server serves at one address.
const (
	cdn    = "cdn.example.org"    // the box has received the address for it
	static = "static.example.org" // denied
	img    = "img.example.org"    // allowed as well
)

// opening is the data that a client sends first.
type opening struct {
	bytes  func(t *testing.T, b *bytesMaker) []byte
	name   string // host in the opening, for policies by name: allowed, denied or another
	pauses bool   // the client waits for the server after it
	ends   bool   // the client closes its sending side after it
}

// bytesMaker builds requests in the form that a connection needs.
type bytesMaker struct {
	port     uint16
	absolute bool
}

func (b *bytesMaker) host(name string) string {
	if b.port == 80 {
		return name
	}
	return name + ":" + strconv.Itoa(int(b.port))
}

// target returns the path, or the whole URL for a proxy.
func (b *bytesMaker) target(name string) string {
	if b.absolute {
		return "http://" + b.host(name) + "/"
	}
	return "/"
}

// text returns the opening of a template in which @ and # are the targets, and {A} and {D} the Hosts, of the allowed and
// the denied host.
func text(name, template string) opening {
	return opening{name: name, bytes: func(_ *testing.T, b *bytesMaker) []byte {
		return []byte(strings.NewReplacer("@", b.target(cdn), "#", b.target(static),
			"{A}", b.host(cdn), "{D}", b.host(static)).Replace(template))
	}}
}

func hello(name, sni string, change func(*testing.T, []byte) []byte) opening {
	return opening{name: name, bytes: func(t *testing.T, _ *bytesMaker) []byte {
		h := peektest.Named(t, sni)
		if change != nil {
			h = change(t, h)
		}
		return h
	}}
}

func greaseECH(t *testing.T, hello []byte) []byte {
	ech := append([]byte{0xfe, 0x0d, 0, 42, 0, 0, 1, 0, 1, 7, 0, 16}, bytes.Repeat([]byte{9}, 16)...)
	return peektest.WithExtension(t, hello, append(append(ech, 0, 16), bytes.Repeat([]byte{8}, 16)...))
}

// helloAndRequest returns a ClientHello for cdn with a text at the start of its random bytes and another in its session ID.
// Every byte before them is a control byte, which netty skips before a request line.
func helloAndRequest(random, session string) []byte {
	pad := func(b []byte, n int) []byte { return append(b, bytes.Repeat([]byte{'x'}, n-len(b))...) }
	body := pad([]byte("\x03\x03"+random), 2+32)
	body = append(body, 32)
	body = append(body, pad([]byte(session), 32)...)
	body = append(body, 0, 2, 0xc0, 0x2f, 1, 0)
	extensions := append([]byte{0, 0, 0, byte(len(cdn) + 5), 0, byte(len(cdn) + 3), 0, 0, byte(len(cdn))}, cdn...)
	const whole = 0x200 // length of the handshake message without its header, for which both length fields consist of control bytes
	padding := whole - len(body) - 2 - len(extensions) - 4
	extensions = append(extensions, 0, 21, byte(padding>>8), byte(padding))
	extensions = append(extensions, make([]byte, padding)...)
	body = append(append(body, byte(len(extensions)>>8), byte(len(extensions))), extensions...)
	head := []byte{22, 3, 1, (whole + 4) >> 8, (whole + 4) & 0xff, 1, 0, whole >> 8, whole & 0xff}
	return append(head, body...)
}

const tail = "\r\nConnection: close\r\n\r\n"

// openings are the rows of the tables in docs/first-bytes.md.
var openings = map[string]opening{
	"a request for an allowed host":                                      text("allowed", "GET @ HTTP/1.1\r\nHost: {A}"+tail),
	"a request for a denied host":                                        text("denied", "GET # HTTP/1.1\r\nHost: {D}"+tail),
	"a request in absolute form":                                         text("allowed", "GET http://{A}/ HTTP/1.1\r\nHost: {A}"+tail),
	"a request whose target names a denied host and Host an allowed one": text("", "GET http://{D}/ HTTP/1.1\r\nHost: {A}"+tail),
	"a method in lower case":                                             text("allowed", "get @ HTTP/1.1\r\nHost: {A}"+tail),
	"bare line feeds":                                                    text("", "GET # HTTP/1.1\nHost: {D}\n\n"),
	"two spaces before the target":                                       text("", "GET  # HTTP/1.1\r\nHost: {D}"+tail),
	"two spaces before the version":                                      text("", "GET #  HTTP/1.1\r\nHost: {D}"+tail),
	"a space behind the version":                                         text("", "GET # HTTP/1.1 \r\nHost: {D}"+tail),
	"an empty line first":                                                text("", "\r\nGET # HTTP/1.1\r\nHost: {D}"+tail),
	"a line feed first":                                                  text("", "\nGET # HTTP/1.1\r\nHost: {D}"+tail),
	"a space first":                                                      text("", " GET # HTTP/1.1\r\nHost: {D}"+tail),
	"a tab first":                                                        text("", "\tGET # HTTP/1.1\r\nHost: {D}"+tail),
	"a NUL first":                                                        text("", "\x00GET # HTTP/1.1\r\nHost: {D}"+tail),
	"a control byte first":                                               text("", "\x01GET # HTTP/1.1\r\nHost: {D}"+tail),
	"a tab behind the method":                                            text("", "FETCH\t#\tHTTP/1.1\r\nHost: {D}"+tail),
	"a form feed behind the method":                                      text("", "FETCH\f# HTTP/1.1\r\nHost: {D}"+tail),
	"a version in lower case":                                            text("", "FETCH # http/1.1\r\nHost: {D}"+tail),
	"no version (HTTP/0.9)":                                              text("", "GET /\r\n"),
	"no version and an absolute target":                                  text("", "GET http://{D}/\r\n"),
	"the preface of HTTP/2":                                              text("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
	"an upgrade to h2c": text("allowed", "GET @ HTTP/1.1\r\nHost: {A}\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"+
		"Connection: close, Upgrade, HTTP2-Settings\r\n\r\n"),
	"a separator that Python skips, alone":      text("", "\x1d"),
	"a no-break space first, and half a method": text("", "\xa0 GE"),
	"a PROXY header, version 1":                 text("", "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: {D}"+tail),
	"a PROXY header, version 2":                 text("", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02GET / HTTP/1.1\r\nHost: {D}"+tail),
	"a line of something else first":            text("", "something else\r\nGET / HTTP/1.1\r\nHost: {D}"+tail),
	"TLS for an allowed host":                   hello("allowed", cdn, nil),
	"TLS for a denied host":                     hello("denied", static, nil),
	"TLS for another allowed host":              hello("another", img, nil),
	"TLS without SNI": {bytes: func(t *testing.T, _ *bytesMaker) []byte {
		return peektest.Hello(t, &tls.Config{InsecureSkipVerify: true})
	}},
	"TLS with an address as SNI": hello("", cdn, func(t *testing.T, h []byte) []byte {
		return bytes.Replace(h, []byte(cdn), []byte("198.151.100.110"), 1) // of the same length
	}),
	"ECH with an allowed outer name": hello("allowed", cdn, greaseECH),
	"ECH with a denied outer name":   hello("denied", static, greaseECH),
	"TLS 1.1": {bytes: func(t *testing.T, _ *bytesMaker) []byte {
		return peektest.Hello(t, &tls.Config{ServerName: cdn, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	}},
	"TLS that reads as a request": hello("", cdn, func(_ *testing.T, _ []byte) []byte {
		return helloAndRequest("GET / HTTP/1.1\n", "\nHost:"+static+"\n\n")
	}),
	"TLS that begins a request": hello("", cdn, func(_ *testing.T, _ []byte) []byte { return helloAndRequest("get /?", "") }),
	"a TLS alert first": {bytes: func(t *testing.T, _ *bytesMaker) []byte {
		return append([]byte{21, 3, 1, 0, 2, 1, 100}, peektest.Named(t, static)...) // no_renegotiation, a warning
	}},
	"a ClientHello in the form of SSL 2.0": text("", "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10"+strings.Repeat("\x05", 37)),
	"SSH":                                  text("", "SSH-2.0-OpenSSH_9.2\r\n"),
	"SMTP":                                 text("", "EHLO "+cdn+"\r\n"),
	"binary bytes":                         text("", "\x00\x00\x00\x4eR\x00\x03\x00\x00user\x00"),
	"silence":                              {pauses: true, bytes: func(*testing.T, *bytesMaker) []byte { return nil }},
	"half a request line, then silence":    {pauses: true, bytes: func(*testing.T, *bytesMaker) []byte { return []byte("GET / HT") }},
	"half a ClientHello, then silence": {pauses: true, bytes: func(t *testing.T, _ *bytesMaker) []byte {
		h := peektest.Named(t, cdn)
		return h[:len(h)/2]
	}},
	"a close without a byte": {ends: true, bytes: func(*testing.T, *bytesMaker) []byte { return nil }},
}

// shapes are the policies of the table, for a server at an address and a port.
var shapes = map[string]func(netip.AddrPort) (policy.Spec, map[string]map[string]string){
	"names": func(netip.AddrPort) (policy.Spec, map[string]map[string]string) {
		return proxytest.Allow(cdn, img), nil
	},
	"denied name": func(netip.AddrPort) (policy.Spec, map[string]map[string]string) {
		return deniedName(), nil
	},
	"header rule": func(at netip.AddrPort) (policy.Spec, map[string]map[string]string) {
		return deniedName(), proxytest.SecretFor(cdn, at.Port())
	},
	"request rule": func(netip.AddrPort) (policy.Spec, map[string]map[string]string) { return ruledCDN(deniedName()), nil },
	"denied alone": func(netip.AddrPort) (policy.Spec, map[string]map[string]string) {
		return policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{static}}, nil
	},
	"addresses": func(at netip.AddrPort) (policy.Spec, map[string]map[string]string) { return cidr(at.Addr()), nil },
	"addresses, rule": func(at netip.AddrPort) (policy.Spec, map[string]map[string]string) {
		return ruledCDN(cidr(at.Addr())), nil
	},
	"any name":   func(netip.AddrPort) (policy.Spec, map[string]map[string]string) { return proxytest.Allow("*"), nil },
	"everything": func(netip.AddrPort) (policy.Spec, map[string]map[string]string) { return proxytest.AllowAll, nil },
}

func deniedName() policy.Spec {
	spec := proxytest.Allow("*.example.org")
	spec.DeniedDomains = []string{static}
	return spec
}

func ruledCDN(spec policy.Spec) policy.Spec {
	spec.Rules = []match.RequestRule{{Hosts: []string{cdn}, Methods: []string{"POST"}, Action: "deny"}}
	return spec
}

// Ways in which a connection arrives, in the order of the columns.
const (
	transparent = iota
	connectName
	connectAddress
	toTheProxy
)

// TestFirstBytes tests every cell of the tables in docs/first-bytes.md: each combination of port, way, first bytes and
// policy.
func TestFirstBytes(t *testing.T) {
	page, err := os.ReadFile("../docs/first-bytes.md")
	if err != nil {
		t.Fatal(err)
	}
	comes := tableOf(t, string(page), "| ground |")
	web, other := tableOf(t, section(string(page), "## Ports 80 and 443"), "| first bytes |"), tableOf(t, section(string(page), "## Other ports"), "| first bytes |")
	for _, rows := range []table{web, other} {
		for row := range openings {
			if rows.cells[row] == nil {
				t.Errorf("the page has no result for %q", row)
			}
		}
	}
	for port, rows := range map[uint16]table{80: web, 443: web, 8443: other} {
		for row, grounds := range rows.cells {
			o, ok := openings[row]
			if !ok {
				t.Fatalf("no test of %q", row)
			}
			for way, ground := range grounds {
				for i, shape := range comes.head {
					c := cell{port: port, way: way, opening: o, shape: shapes[shape]}
					if c.shape == nil {
						t.Fatalf("no policy %q", shape)
					}
					c.want = c.expect(t, ground, comes, i)
					t.Run(strings.Join([]string{strconv.Itoa(int(port)), rows.head[way], row, shape}, "/"), c.run)
				}
			}
		}
	}
}

// TestFirstBytesWhereTheServerSpeaksFirst tests the ports of protocols in which the server speaks first.
func TestFirstBytesWhereTheServerSpeaksFirst(t *testing.T) {
	for _, row := range []string{"a request for a denied host", "TLS for a denied host", "SSH", "silence", "half a request line, then silence"} {
		for shape, spec := range shapes {
			if strings.HasSuffix(shape, "rule") {
				continue
			}
			for _, way := range []int{transparent, connectName} {
				c := cell{port: 2525, way: way, opening: openings[row], shape: spec, want: "passes", unread: true}
				t.Run(strings.Join([]string{[]string{"transparent", "CONNECT"}[way], row, shape}, "/"), c.run)
			}
		}
	}
}

// cell is one cell of a table.
type cell struct {
	port uint16
	way  int
	opening
	shape  func(netip.AddrPort) (policy.Spec, map[string]map[string]string)
	want   string // passes, terminated, nothing, or a reason
	unread bool   // requests are forwarded as bytes
}

// expect returns the page's result for a cell, given its row and the policy of a column.
func (c *cell) expect(t *testing.T, ground string, comes table, column int) string {
	t.Helper()
	if c.way == connectAddress {
		gate := "CONNECT to an address, other ports"
		if c.port == 80 || c.port == 443 {
			gate = "CONNECT to an address, 80 and 443"
		}
		if by := comes.cells[gate][column]; by != "passes" {
			return by
		}
	}
	if ground == "host" || ground == "sni" {
		ground += ", " + c.name
	}
	if row := comes.cells[ground]; row != nil {
		return row[column]
	}
	if ground != "nothing" && !slices.Contains(name.Reasons(), name.Reason(ground)) {
		t.Fatalf("%q is neither a row nor a reason", ground)
	}
	return ground
}

func (c cell) run(t *testing.T) {
	sent := c.bytes(t, &bytesMaker{port: c.port, absolute: c.way == toTheProxy})
	t.Parallel()
	for timeout := 100 * time.Millisecond; !c.try(t, sent, timeout); timeout *= 4 {
	}
}

// try tests the cell with a timeout for incomplete first bytes. It returns false, without a result, if this machine was too
// busy to send them well within it.
func (c *cell) try(t *testing.T, sent []byte, timeout time.Duration) bool {
	t.Helper()
	heard, halfWay := &hearing{}, c.want == string(name.ReasonPeekTimeout)
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeDenyAll}, func(cfg *proxy.Config) {
		cfg.PeekTimeout, cfg.SilenceTimeout = 20*time.Second, 20*time.Second
		if halfWay {
			cfg.PeekTimeout = timeout
		}
		if len(sent) == 0 {
			cfg.SilenceTimeout = timeout / 10
		}
	})
	server := r.Server(c.port, func(conn net.Conn) { heard.serve(conn, (c.pauses || c.ends) && len(sent) == 0) })
	for _, name := range []string{cdn, static, img} {
		r.Names.Set(name, server.Addr())
	}
	r.Names.Grant(cdn, server.Addr())
	spec, headers := c.shape(server)
	r.Policy(spec, headers)

	began := time.Now()
	conn, status, err := c.dial(r, server)
	if errors.Is(err, syscall.ECONNRESET) && timeout < time.Hour {
		return false // the short timeout passed before connect(2) was seen to have succeeded
	}
	if err != nil {
		t.Fatal(err)
	}
	if conn == nil {
		if c.want != "nothing" && !strings.Contains(status, " 403 ") {
			t.Errorf("CONNECT got the answer %q", status)
		}
	} else {
		_, _ = conn.Write(sent)
		late := time.Since(began) > timeout/2
		if c.ends {
			_ = conn.CloseWrite()
		}
		status = answerOf(conn)
		conn.Close()
		if halfWay && late {
			return false
		}
	}
	c.check(r, heard, sent, status)
	return true
}

// dial connects in the cell's way. Without a connection it returns the answer to CONNECT.
func (c *cell) dial(r *proxytest.Rig, server netip.AddrPort) (conn *net.TCPConn, status string, err error) {
	switch c.way {
	case transparent:
		conn, err = proxytest.TryDial(r.T, r.Listen(server))
		return conn, "", err
	case toTheProxy:
		conn, err = proxytest.TryDial(r.T, r.Explicit())
		return conn, "", err
	}
	authority := server.String()
	if c.way == connectName {
		authority = cdn + ":" + strconv.Itoa(int(c.port))
	}
	proxy := r.Explicit()
	conn, status, err = tryConnect(r, proxy, authority, "")
	for tries := 0; err != nil && c.want == string(name.ReasonPeekTimeout) && tries < 100; tries++ {
		if conn != nil {
			conn.Close() // the short timeout passed before the CONNECT was read
		}
		conn, status, err = tryConnect(r, proxy, authority, "")
	}
	if err != nil {
		return nil, "", fmt.Errorf("CONNECT %s: %w", authority, err)
	}
	if !strings.Contains(status, " 200 ") {
		conn.Close()
		return nil, status, nil
	}
	return conn, status, nil
}

// answerOf reads the first bytes of an answer.
func answerOf(c net.Conn) string {
	b := make([]byte, 512)
	n, err := c.Read(b)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "the connection was left open"
	}
	return string(b[:n])
}

// check compares the observations of box, server and log with the expected result.
func (c *cell) check(r *proxytest.Rig, heard *hearing, sent []byte, answer string) {
	t := r.T
	t.Helper()
	if got := heard.all(); c.want != "passes" && len(got) > 0 {
		t.Fatalf("the server received %q", got)
	}
	switch c.want {
	case "nothing":
		return
	case "terminated":
		if !strings.HasPrefix(answer, "\x16\x03") {
			t.Errorf("the client received %q", answer)
		}
		return
	}
	e := r.Want("a decision", func(e audit.Event) bool { return e.Phase != audit.PhaseOpen })
	if c.want != "passes" {
		if e.Verdict != policy.Deny || e.Reason != name.Reason(c.want) {
			t.Errorf("decision %+v", e)
		}
		if len(answer) > 0 && !strings.HasPrefix(answer, "HTTP/1.1 4") && answer != string(proxy.AccessDenied) {
			t.Errorf("the client received %q", answer)
		}
		return
	}
	if e.Verdict != policy.Allow {
		t.Fatalf("decision %+v", e)
	}
	if c.ends && !strings.HasPrefix(answer, "220 ") {
		t.Errorf("the client received %q", answer)
	}
	isHTTP := !c.unread && c.name != "" && bytes.Contains(sent, []byte("HTTP/"))
	if got := heard.await(t); !isHTTP && !bytes.Equal(got, sent) || isHTTP && !bytes.Contains(got, []byte(" / HTTP/1.1\r\n")) {
		t.Errorf("the server received %q; the client %q", got, answer)
	}
}

// hearing records the data that a server receives, on all its connections.
type hearing struct {
	mu   sync.Mutex
	said []byte
	come bool
}

// serve greets or listens, and answers all data as an HTTP server would.
func (h *hearing) serve(c net.Conn, greets bool) {
	defer c.Close()
	if greets {
		h.hear(nil)
		_, _ = io.WriteString(c, "220 welcome\r\n")
		return
	}
	b := make([]byte, 64<<10)
	n, _ := c.Read(b)
	if n == 0 {
		return
	}
	h.hear(b[:n])
	_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
}

func (h *hearing) hear(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.come, h.said = true, append(h.said, b...)
}

func (h *hearing) all() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.said)
}

// await returns the received data after a client has connected.
func (h *hearing) await(t testing.TB) []byte {
	t.Helper()
	proxytest.Await(t, "a client of the server", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.come
	})
	return h.all()
}
