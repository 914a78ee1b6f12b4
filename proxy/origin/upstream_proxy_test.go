package origin_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// upstreamProxy is a proxy for the user u with the password pw, of a scheme. It connects to loopback whatever host it is asked for.
type upstreamProxy struct {
	url   string
	mu    sync.Mutex
	asked []string
}

func newUpstreamProxy(l *proxytest.Rig, scheme string) *upstreamProxy {
	p := &upstreamProxy{}
	serve := func(c net.Conn, r *bufio.Reader) {
		ask, grant := connectRequest, "HTTP/1.1 200 OK\r\n\r\n"
		if scheme == "socks5" {
			ask, grant = socksRequest, "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
		}
		to, err := ask(c, r)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, to)
		p.mu.Unlock()
		_, port, _ := net.SplitHostPort(to)
		up, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			return
		}
		defer up.Close()
		_, _ = io.WriteString(c, grant)
		go func() { _, _ = io.Copy(up, r); _ = up.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(c, up)
	}
	p.url = scheme + "://proxy.test:" + strconv.Itoa(int(l.RawServer(scheme == "https", serve)))
	return p
}

// connectRequest reads a CONNECT and returns its target.
func connectRequest(c net.Conn, r *bufio.Reader) (string, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	if req.Method != "CONNECT" || req.Header.Get("Proxy-Authorization") != proxytest.Basic("u", "pw") {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return "", errors.New("it does not authenticate")
	}
	return req.Host, nil
}

// socksRequest performs the server side of a SOCKS5 negotiation and returns the target (RFC 1928, RFC 1929).
func socksRequest(c net.Conn, r *bufio.Reader) (to string, err error) {
	read := func(n int) []byte {
		b := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(r, b)
		}
		return b
	}
	read(int(read(2)[1])) // the methods
	_, _ = c.Write([]byte{5, 2})
	user := read(int(read(2)[1]))
	password := read(int(read(1)[0]))
	if err == nil && (string(user) != "u" || string(password) != "pw") {
		_, _ = c.Write([]byte{1, 1})
		return "", errors.New("it does not authenticate")
	}
	_, _ = c.Write([]byte{1, 0})
	var host string
	switch head := read(4); head[3] {
	case 1:
		host = netip.AddrFrom4([4]byte(read(4))).String()
	case 3:
		host = string(read(int(read(1)[0])))
	}
	return net.JoinHostPort(host, strconv.Itoa(int(binary.BigEndian.Uint16(read(2))))), err
}

// targets returns the targets that clients have requested.
func (p *upstreamProxy) targets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// by returns a policy that sends all connections through a proxy, which resolves the given names.
func by(url string, there ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeAllowAll, UpstreamProxy: &policy.UpstreamSpec{URL: url, ResolveThere: there}}
}

// login are header rules with a login for a proxy; password is JSON. TLS to api.example.com is terminated on a port.
func login(url string, port uint16, password string) string {
	scheme, host, _ := strings.Cut(url, "://")
	return `{"` + host + `": {"proxy": {"scheme": "` + scheme + `", "username": "u", "password": ` + password + `}},
		"` + proxytest.HostPort(port) + `": {"headers": {"X-Rule": "in force"}}}`
}

// TestUpstreamProxy makes requests over HTTPS, HTTP and in a tunnel by proxies of each scheme: the proxy is given the address
// that was judged, or the name where it resolves that.
func TestUpstreamProxy(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https", "socks5"} {
		for host, there := range map[string][]string{"127.0.0.1": nil, proxytest.API: {"*.example.com"}} {
			for _, h2 := range []bool{false, true} {
				t.Run(scheme+" to "+host+" h2 "+strconv.FormatBool(h2), func(t *testing.T) {
					t.Parallel()
					l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
					_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-Rule")) })
					_, plain := l.HTTPServer(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "plain") })
					p := newUpstreamProxy(l, scheme)
					l.Rules(by(p.url, there...), login(p.url, port, `"pw"`))
					if res, body := proxytest.Get(t, l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 || body != "in force" {
						t.Fatalf("%s %s", res.Status, body)
					}
					if _, body := proxytest.Get(t, l.HTTPClient(plain, false), "http://"+proxytest.HostPort(plain)+"/", nil); body != "plain" {
						t.Errorf("plain HTTP: %s", body)
					}
					want := []string{net.JoinHostPort(host, strconv.Itoa(int(port))), net.JoinHostPort(host, strconv.Itoa(int(plain)))}
					if got := p.targets(); !slices.Equal(got, want) {
						t.Errorf("the proxy was asked for %q, want %q", got, want)
					}
					for _, e := range l.Events.Wait(t, 2) {
						if e.Verdict != policy.Allow || e.Via != p.url {
							t.Errorf("%+v", e)
						}
					}
				})
			}
		}
	}
}

// TestTunnelByAnUpstreamProxy: spliced connections use the proxy too, which passes on the end of each direction.
func TestTunnelByAnUpstreamProxy(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https", "socks5"} {
		l := proxytest.New(t, proxytest.AllowAll)
		port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(c, "hello\n")
			_, _ = io.Copy(c, r)
		})
		p := newUpstreamProxy(l, scheme)
		l.Names.SetOthers(proxytest.Loopback)
		l.Rules(by(p.url), login(p.url, 1, `"pw"`))
		c := l.Dial(netip.AddrPortFrom(proxytest.Loopback, port))
		if line, err := proxytest.FirstLine(c); line != "hello" {
			t.Fatalf("%s: %q, %v", scheme, line, err)
		}
		_, _ = io.WriteString(c, "all of it")
		_ = c.CloseWrite()
		if got := proxytest.ReadAll(t, c); got != "all of it" {
			t.Errorf("%s: %q", scheme, got)
		}
		if got := p.targets(); len(got) != 1 {
			t.Errorf("%s: the proxy was asked for %q", scheme, got)
		}
	}
}

// TestAttackPastAnUpstreamProxy: if the proxy fails, or must not be used, the gateway does not connect without it, and does not
// reveal its address to the box.
func TestAttackPastAnUpstreamProxy(t *testing.T) {
	t.Parallel()
	for label, c := range map[string]struct {
		scheme, password string
		spec             func(url string) policy.Spec
		want             name.Reason
	}{
		"wrong password":               {"http", `"wrong"`, nil, name.ReasonUpstreamProxy},
		"wrong password socks":         {"socks5", `"wrong"`, nil, name.ReasonUpstreamProxy},
		"no such secret":               {"http", `{"secret": "missing"}`, nil, name.ReasonSecretUnavailable},
		"not there":                    {"http", `"pw"`, func(string) policy.Spec { return by("http://proxy.test:" + closedPort(t)) }, name.ReasonUpstreamProxy},
		"no TLS":                       {"http", `"pw"`, func(url string) policy.Spec { return by("https" + strings.TrimPrefix(url, "http")) }, name.ReasonUpstreamProxy},
		"in a protected range":         {"http", `"pw"`, func(string) policy.Spec { return by("http://10.0.0.1:3128") }, name.ReasonUpstreamProxy},
		"to a name that is protected":  {"http", `"pw"`, func(url string) policy.Spec { return by(url, "*") }, name.ReasonProtectedRange},
		"to a name that has a bad way": {"http", `"wrong"`, func(url string) policy.Spec { return by(url, "*.example.com") }, name.ReasonProtectedRange},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{} })
			var reached atomic.Int32
			_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
			p := newUpstreamProxy(l, c.scheme)
			spec := by(p.url)
			if c.spec != nil {
				spec = c.spec(p.url)
			}
			if c.want == name.ReasonProtectedRange {
				l.Names.Set(proxytest.API, proxytest.Loopback, netip.MustParseAddr("10.0.0.1"))
			}
			l.Rules(spec, login(p.url, port, c.password))
			_, body := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
			if !strings.Contains(body, `"`+string(c.want)+`"`) || strings.Contains(body, "proxy.test") || c.want == name.ReasonUpstreamProxy && strings.Contains(body, "10.0.0.1") {
				t.Errorf("the box is told %s", body)
			}
			if e := l.WantReason(c.want); e.Verdict != policy.Deny || strings.Contains(e.Error, "wrong") {
				t.Errorf("%+v", e)
			}
			if got := p.targets(); len(got) > 0 || reached.Load() > 0 {
				t.Errorf("the proxy was asked for %q, and the server %d times", got, reached.Load())
			}
		})
	}
}

// closedPort returns a loopback port without a listener.
func closedPort(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return strconv.Itoa(int(proxytest.PortOf(t, ln)))
}

// TestRevokedPasswordOfAnUpstreamProxy: connections that logged in with a revoked password are not reused.
func TestRevokedPasswordOfAnUpstreamProxy(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"pw": proxytest.Fixed("pw")} })
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	p := newUpstreamProxy(l, "http")
	l.Rules(by(p.url), login(p.url, port, `{"secret": "pw"}`))
	client := l.HTTPClient(port, false)
	for range 2 {
		if res, body := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
			t.Fatal(res.Status, body)
		}
		client.CloseIdleConnections()
		proxytest.Await(t, "an idle upstream connection", func() bool { return proxytest.IdleUpstreams(l) == 1 })
	}
	if got := p.targets(); len(got) != 1 {
		t.Errorf("the proxy was asked for %q", got)
	}
	l.Proxy.Revoke("pw")
	if n := l.Upstreams(); n > 0 {
		t.Errorf("%d connections are left", n)
	}
}

// TestPasswordRevokedWhileConnecting: the connection that was asked for with it is not used.
func TestPasswordRevokedWhileConnecting(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) {
		c.Secrets = proxytest.Sources{"pw": func(context.Context) (string, error) {
			l.Core.Revoked.Revoke("pw")
			return "pw", nil
		}}
	})
	var reached atomic.Int32
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	p := newUpstreamProxy(l, "http")
	l.Rules(by(p.url), login(p.url, port, `{"secret": "pw"}`))
	res, body := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
	if res.StatusCode != 502 || !strings.Contains(body, string(name.ReasonUpstreamProxy)) || reached.Load() > 0 || l.Upstreams() > 0 {
		t.Errorf("%s %s, reached %d", res.Status, body, reached.Load())
	}
}

// TestHandshakeAfterASlowDial: the time that it takes to connect is not taken from that of the handshake.
func TestHandshakeAfterASlowDial(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.DialTimeout, c.HandshakeTimeout = time.Minute, limit })
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	slow := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
		if _, err := connectRequest(c, r); err != nil {
			return
		}
		<-time.After(limit)
		up, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			return
		}
		defer up.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, r) }()
		_, _ = io.Copy(c, up)
	})
	url := "http://proxy.test:" + strconv.Itoa(int(slow))
	l.Rules(by(url), login(url, port, `"pw"`))
	var status int
	for range 10 { // a busy host may take a second for a handshake
		res, _ := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
		if status = res.StatusCode; status == 200 {
			return
		}
	}
	t.Errorf("%d", status)
}
