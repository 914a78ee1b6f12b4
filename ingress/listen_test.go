package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/internal/socket"
	"boxgate/internal/socket/sockettest"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Visitors who have connected before the gateway stops are answered, at whatever stage they are. Later ones are refused a
// connection.
func TestVisitorsWhoHaveConnectedAreAnswered(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T, *fixture) (answer func() string){
		"plain": func(t *testing.T, f *fixture) func() string {
			c := f.dial(t, f.plain)
			return func() string { return askPlain(t, c) }
		},
		"before the handshake": func(t *testing.T, f *fixture) func() string {
			c := f.dial(t, f.https)
			return func() string { return askPlain(t, f.handshake(t, c, "one"+domain, "http/1.1")) }
		},
		"after it": func(t *testing.T, f *fixture) func() string {
			c := f.handshake(t, f.dial(t, f.https), "one"+domain, "http/1.1")
			return func() string { return askPlain(t, c) }
		},
		"HTTP/2": func(t *testing.T, f *fixture) func() string {
			v := f.frames(t, "one")
			return func() string { return v.answerOf(v.ask(true, to("GET", "one", "/")...)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, nil, func(g *Ingress) { g.arrival = time.Minute })
			f.expose("one", record(t).Server, Auth{Open: true})
			answer := connect(t, f)
			f.awaitHeld(t)
			stopped := make(chan error, 1)
			go func() { stopped <- f.Shutdown(t.Context()) }()
			f.awaitRefusal(t, f.plain)
			f.awaitRefusal(t, f.https)
			if got := answer(); got != "200 OK" && got != "200" {
				t.Errorf("answered with %s", got)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// answerOf returns the status of a stream's response, or the error.
func (v *frames) answerOf(id uint32) string {
	r := v.answer(id)
	return r.status()
}

// awaitHeld waits until a connection has been accepted.
func (f *fixture) awaitHeld(t *testing.T) {
	t.Helper()
	for held := 0; held == 0 && t.Context().Err() == nil; runtime.Gosched() {
		f.Ingress.mu.Lock()
		for _, l := range f.listeners {
			held += len(l.silent())
		}
		f.Ingress.mu.Unlock()
	}
}

// awaitRefusal waits until an address refuses connections.
func (f *fixture) awaitRefusal(t *testing.T, at string) {
	t.Helper()
	for t.Context().Err() == nil {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
			continue
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		return
	}
}

// Connections that are still in the queue when the gateway stops are answered as well: they were established.
func TestVisitorsWhoWaitToBeAcceptedAreAnswered(t *testing.T) {
	t.Parallel()
	f := startWith(t, nil, func(g *Ingress) { g.arrival = time.Minute })
	f.expose("one", record(t).Server, Auth{Open: true})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	late := sockettest.NewLate(socket.NewQueue(ln))
	served := make(chan error, 1)
	go func() { served <- f.ServePlain(late) }()
	<-late.Asked
	const count = 10
	var answers [count]chan string
	for i := range answers {
		c := f.dial(t, ln.Addr().String())
		answers[i] = make(chan string, 1)
		go func() { answers[i] <- askPlain(t, c) }()
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, answer := range answers {
		if got := <-answer; got != "200 OK" {
			t.Errorf("answered with %s", got)
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// askPlain sends a request over a new connection, and returns the status of the response, or the error.
func askPlain(t *testing.T, c net.Conn) string {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\n\r\n"); err != nil {
		return err.Error()
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if !resp.Close {
		t.Error("the connection is said to stay open")
	}
	return resp.Status
}

// A silent visitor does not delay a stop, and one whose request was answered even less.
func TestSilentVisitorsDoNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	const short = 50 * time.Millisecond
	for name, c := range map[string]struct {
		arrival time.Duration
		asked   bool
		connect func(*testing.T, *fixture)
	}{
		"plain":        {short, false, func(t *testing.T, f *fixture) { f.dial(t, f.plain) }},
		"no handshake": {short, false, func(t *testing.T, f *fixture) { f.dial(t, f.https) }},
		"no request":   {short, false, func(t *testing.T, f *fixture) { f.connectTo(t, "one"+domain) }},
		"HTTP/2":       {short, false, func(t *testing.T, f *fixture) { f.frames(t, "one") }},
		"asked before": {time.Hour, true, func(t *testing.T, f *fixture) {
			get(t, f.client(t, false), "https://one"+domain+"/", nil)
			get(t, f.client(t, true), "https://one"+domain+"/", nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, nil, func(g *Ingress) { g.arrival = c.arrival })
			f.expose("one", record(t).Server, Auth{Open: true})
			if c.connect(t, f); !c.asked {
				f.awaitHeld(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := f.Shutdown(ctx); err != nil || ctx.Err() != nil {
				t.Errorf("it took 30 s: %v", err)
			}
		})
	}
}

// Suites without authenticated encryption or forward secrecy, and versions before TLS 1.2, are refused.
func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for name, c := range map[string]struct {
		config *tls.Config
		works  bool
	}{
		"CBC": {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,
		}}, false},
		"TLS 1.1": {&tls.Config{MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}, false},
		"TLS 1.2": {&tls.Config{MaxVersion: tls.VersionTLS12}, true},
		"TLS 1.3": {&tls.Config{}, true},
	} {
		config := c.config.Clone()
		config.RootCAs, config.ServerName = f.roots, "one"+domain
		if err := tls.Client(f.dial(t, f.https), config).Handshake(); (err == nil) != c.works {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A session can be resumed for hours, but not after a day.
func TestTicketsLastADay(t *testing.T) {
	cert := wildcard(t, x509.NewCertPool())
	synctest.Test(t, func(t *testing.T) {
		server := tlsConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil })
		defer keepTicketsFresh(server)()
		client := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, ServerName: "one" + domain, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		resumed := func() bool {
			c, s := net.Pipe()
			defer c.Close()
			defer s.Close()
			go func() { _ = tls.Server(s, server).Handshake() }()
			conn := tls.Client(c, client)
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			return conn.ConnectionState().DidResume
		}
		if resumed() {
			t.Error("there was nothing to resume")
		}
		time.Sleep(7 * time.Hour)
		if !resumed() {
			t.Error("a session is not resumed")
		}
		time.Sleep(25 * time.Hour)
		if resumed() {
			t.Error("a session is resumed after a day")
		}
	})
}

// lies is the connection of a visitor who answers the server's handshake with the beginning of a certificate of 252 KiB, which
// crypto/tls would buffer.
type lies struct {
	net.Conn
	writes int
}

func (l *lies) Write(b []byte) (int, error) {
	if l.writes++; l.writes == 1 {
		return l.Conn.Write(b)
	}
	for part := range slices.Chunk(append([]byte{11, 3, 0xf0, 0}, make([]byte, 96<<10)...), 16<<10) {
		_, _ = l.Conn.Write(append([]byte{22, 3, 3, byte(len(part) >> 8), byte(len(part))}, part...))
	}
	return len(b), nil
}

// TestAttackVisitorsLongHandshakeMessages: a visitor who begins an oversized handshake message loses the connection before the
// message is complete.
func TestAttackVisitorsLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	cfg := &tls.Config{RootCAs: f.roots, ServerName: "one" + domain, MaxVersion: tls.VersionTLS12}
	if err := tls.Client(f.dial(t, f.https), cfg).Handshake(); err != nil {
		t.Fatal(err)
	}
	_ = tls.Client(&lies{Conn: f.dial(t, f.https)}, cfg).Handshake()
	f.event(t, func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
}

// proxyHeader returns a load balancer's header for a visitor; "" is the balancer's own connection.
func proxyHeader(from string) string {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	if from == "" {
		return signature + "\x20\x00\x00\x00"
	}
	a := netip.MustParseAddrPort(from)
	family := byte(0x11)
	to := netip.MustParseAddr("198.51.100.1")
	if a.Addr().Is6() {
		family, to = 0x21, netip.MustParseAddr("2001:db8::1")
	}
	rest := append(a.Addr().AsSlice(), to.AsSlice()...)
	rest = binary.BigEndian.AppendUint16(rest, a.Port())
	rest = binary.BigEndian.AppendUint16(rest, 443)
	b := append([]byte(signature), 0x21, family)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(len(rest))), rest...))
}

// balanced returns an ingress behind a load balancer at 127.0.0.2.
func balanced(t *testing.T, change func(*Config)) *fixture {
	return start(t, func(cfg *Config) {
		cfg.Balancers = balancer.List{netip.MustParsePrefix("127.0.0.2/32")}
		if change != nil {
			change(cfg)
		}
	})
}

// from connects to a listener from an address, and sends data. It connects again after a reset, since on a busy machine with a
// short timeout the listener may give up before Dial returns.
func from(t *testing.T, address, to, said string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	for until := time.Now().Add(time.Minute); errors.Is(err, syscall.ECONNRESET) && time.Now().Before(until); {
		c, err = d.DialContext(t.Context(), "tcp", to)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, said)
	return c
}

// TestBalancerSaysWhoTheVisitorIs: the application, the log and the limits use the address from a listed balancer's header,
// over HTTPS and plain HTTP.
func TestBalancerSaysWhoTheVisitorIs(t *testing.T) {
	t.Parallel()
	f := balanced(t, nil)
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	for said, want := range map[string]string{"192.0.2.7:4711": "192.0.2.7", "[2001:db8::7]:4711": "2001:db8::7", "": "127.0.0.2"} {
		secure := tls.Client(from(t, "127.0.0.2", f.https, proxyHeader(said)), &tls.Config{RootCAs: f.roots, ServerName: "a" + domain})
		for _, c := range []net.Conn{secure, from(t, "127.0.0.2", f.plain, proxyHeader(said))} {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a"+domain+"\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%q: %v, %v", said, res, err)
			}
			if got := app.last(t).Header["X-Forwarded-For"]; len(got) != 1 || got[0] != want {
				t.Errorf("%q: the application is told %q", said, got)
			}
		}
		f.event(t, func(e audit.Event) bool { return e.Verdict == policy.Allow && e.Peer.String() == want })
	}
}

// TestOnlyBalancersAreBelieved: a header from another address is an invalid request, and a balancer's connection without one
// is refused.
func TestOnlyBalancersAreBelieved(t *testing.T) {
	t.Parallel()
	f := balanced(t, nil)
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	request := "GET / HTTP/1.1\r\nHost: a" + domain + "\r\n\r\n"
	for name, c := range map[string]struct{ address, said string }{
		"a visitor with a header":         {"127.0.0.1", proxyHeader("192.0.2.7:4711") + request},
		"a balancer without one":          {"127.0.0.2", request},
		"a balancer with one of before":   {"127.0.0.2", "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n" + request},
		"a balancer that speaks for more": {"127.0.0.2", proxyHeader("192.0.2.7:4711") + proxyHeader("192.0.2.8:4711") + request},
	} {
		got, err := io.ReadAll(from(t, c.address, f.plain, c.said))
		if strings.Contains(string(got), " 200 ") {
			t.Errorf("%s: %q", name, got)
		}
		t.Logf("%s: %.40q, %v", name, got, err)
		secure := tls.Client(from(t, c.address, f.https, strings.TrimSuffix(c.said, request)), &tls.Config{RootCAs: f.roots, ServerName: "a" + domain})
		if err := secure.HandshakeContext(t.Context()); err == nil {
			t.Errorf("%s: the handshake succeeded", name)
		}
	}
	if n := app.count(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
	f.event(t, func(e audit.Event) bool {
		return e.Reason == name.ReasonBadRequest && e.Peer.String() == "127.0.0.2" && strings.Contains(e.Error, "PROXY")
	})
}

// TestVisitorsOfABalancerAreLimited counts connections for visitors, not for their balancer.
func TestVisitorsOfABalancerAreLimited(t *testing.T) {
	t.Parallel()
	f := balanced(t, func(cfg *Config) { cfg.Connections = 8 })
	app := record(t)
	f.expose("a", app.Server, Auth{Open: true})
	open := func(visitor string) bool {
		c := from(t, "127.0.0.2", f.https, proxyHeader(visitor))
		return tls.Client(c, &tls.Config{RootCAs: f.roots, ServerName: "a" + domain}).HandshakeContext(t.Context()) == nil
	}
	for _, visitor := range []string{"192.0.2.7:1", "192.0.2.7:2", "192.0.2.8:1", "192.0.2.8:2"} {
		if !open(visitor) {
			t.Errorf("%s was refused", visitor)
		}
	}
	if open("192.0.2.7:3") {
		t.Error("a visitor took more than a quarter")
	}
	f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonLimit && e.Peer.String() == "192.0.2.7" })
	if !open("192.0.2.9:1") {
		t.Error("another visitor was refused")
	}
}

// TestBalancerThatSaysNothing: without a complete header the connection ends.
func TestBalancerThatSaysNothing(t *testing.T) {
	t.Parallel()
	f := balanced(t, func(cfg *Config) { cfg.ReadHeaderTimeout = 50 * time.Millisecond })
	for _, said := range []string{"", "\r\n\r\n", proxyHeader("192.0.2.7:4711")[:20]} {
		if got, err := io.ReadAll(from(t, "127.0.0.2", f.https, said)); len(got) > 0 || err == nil {
			t.Errorf("%q: %q, %v", said, got, err)
		}
	}
}

// trustedFields are fields by which applications assign a request to a user, client, address, scheme or path, because the
// documented proxy in front of them sets these fields.
var trustedFields = map[string][]string{
	"Grafana, auth proxy": {"X-WEBAUTH-USER", "X-WEBAUTH-NAME", "X-WEBAUTH-EMAIL", "X-WEBAUTH-GROUPS", "X-WEBAUTH-ROLE", "X-WEBAUTH-FULLNAME"},
	"Authelia":            {"Remote-User", "Remote-Groups", "Remote-Name", "Remote-Email"},
	"CGI and its like": {"Remote-Addr", "Remote-Host", "Remote-Ident", "X-Remote-User", "X-Remote-Group", "X-Remote-Groups", "X-Remote-Email", "X-Remote-Addr",
		"X-Remote-IP", "X-Remote-Extra-Scopes", "X-Remote-User-Email", "Script-Name", "Path-Info", "X-Script-Name"},
	"httpoxy": {"Proxy"},
	"oauth2-proxy": {"X-Auth-Request-User", "X-Auth-Request-Email", "X-Auth-Request-Groups", "X-Auth-Request-Preferred-Username", "X-Auth-Request-Access-Token",
		"X-Auth-Request-Redirect", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups", "X-Forwarded-Preferred-Username", "X-Forwarded-Access-Token"},
	"authentik": {"X-Authentik-Username", "X-Authentik-Groups", "X-Authentik-Entitlements", "X-Authentik-Email", "X-Authentik-Name", "X-Authentik-Uid",
		"X-Authentik-Jwt", "X-Authentik-Meta-App"},
	"basic proxies": {"X-Auth-User", "X-Auth-Username", "X-Auth-Email", "X-Auth-Name", "X-Auth-Groups", "X-Auth-Roles", "X-Authenticated-User",
		"X-Authenticated-Userid", "X-Authenticated-Groups", "X-Authenticated-Scope", "X-User", "X-Username", "X-User-Id", "X-User-Email", "X-User-Name",
		"X-User-Roles", "X-User-Groups", "X-Userinfo", "X-Email", "X-Groups", "X-Proxy-REMOTE-USER"},
	"Tailscale serve": {"Tailscale-User-Login", "Tailscale-User-Name", "Tailscale-User-Profile-Pic", "Tailscale-Headers-Info", "Tailscale-App-Capabilities",
		"Tailscale-Funnel-Request"},
	"Cloudflare": {"Cf-Access-Authenticated-User-Email", "Cf-Access-Jwt-Assertion", "Cf-Access-Client-Id", "Cf-Access-Client-Secret", "CF-Connecting-IP",
		"CF-Connecting-IPv6", "CF-Pseudo-IPv4", "CF-IPCountry", "CF-Visitor", "True-Client-IP"},
	"Google": {"X-Goog-Authenticated-User-Email", "X-Goog-Authenticated-User-Id", "X-Goog-IAP-JWT-Assertion", "X-Appengine-User-IP", "X-Appengine-User-Email",
		"X-Appengine-User-Is-Admin", "X-Appengine-Cron", "X-Appengine-QueueName", "X-Appengine-Inbound-Appid", "X-Endpoint-API-UserInfo",
		"X-Apigateway-Api-Userinfo"},
	"AWS": {"X-Amzn-Oidc-Data", "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Accesstoken", "X-Amzn-Mtls-Clientcert", "X-Amzn-Mtls-Clientcert-Leaf",
		"X-Amzn-Mtls-Clientcert-Subject", "X-Amzn-Mtls-Clientcert-Serial-Number"},
	"Azure": {"X-MS-CLIENT-PRINCIPAL", "X-MS-CLIENT-PRINCIPAL-NAME", "X-MS-CLIENT-PRINCIPAL-ID", "X-MS-CLIENT-PRINCIPAL-IDP", "X-MS-TOKEN-AAD-ID-TOKEN",
		"X-MS-TOKEN-AAD-ACCESS-TOKEN", "X-ARR-ClientCert", "X-ARR-SSL", "X-Azure-ClientIP", "X-Azure-SocketIP"},
	"Envoy and Istio": {"X-Envoy-External-Address", "X-Envoy-Internal", "X-Envoy-Original-Path", "X-Envoy-Original-Host", "X-Envoy-Original-Dst-Host",
		"X-Envoy-Downstream-Service-Cluster", "X-Envoy-Peer-Metadata", "X-Forwarded-Client-Cert"},
	"nginx, Apache, HAProxy": {"SSL-Client-Cert", "SSL_CLIENT_S_DN", "SSL_CLIENT_S_DN_CN", "SSL_CLIENT_S_DN_Email", "SSL_CLIENT_VERIFY", "SSL_CLIENT_I_DN",
		"SSL_CLIENT_M_SERIAL", "SSL_CLIENT_FINGERPRINT", "Ssl-Client-Subject-Dn", "Ssl-Client-Issuer-Dn", "X-SSL", "X-SSL-Cert", "X-SSL-Client-Cert",
		"X-SSL-Client-Verify", "X-SSL-Client-CN", "X-SSL-Client-DN", "X-SSL-Client-S-DN", "X-SSL-Client-Serial", "X-SSL-Client-SHA1", "X-SSL-Issuer",
		"X-SSL-Subject", "X-Client-Cert", "X-Client-Certificate", "X-Client-Cert-Dn", "X-Client-Verify", "X-Client-DN", "X-TLS-Client-Subject", "Client-Cert",
		"Client-Cert-Chain"},
	"Traefik": {"X-Forwarded-Tls-Client-Cert", "X-Forwarded-Tls-Client-Cert-Info", "X-Forwarded-Server", "X-Forwarded-Uri", "X-Forwarded-Method"},
	"Kong":    {"X-Consumer-ID", "X-Consumer-Username", "X-Consumer-Custom-ID", "X-Consumer-Groups", "X-Credential-Identifier", "X-Anonymous-Consumer"},
	"others": {"X-Pomerium-Jwt-Assertion", "X-Pomerium-Claim-Email", "X-Vouch-User", "X-Vouch-IdP-AccessToken", "Ngrok-Auth-User-Email", "Ngrok-Auth-User-Id",
		"X-Sandstorm-User-Id", "X-Sandstorm-Username", "X-Replit-User-Id", "X-Replit-User-Name", "OIDC_CLAIM_sub", "OIDC_CLAIM_email", "OIDC_access_token",
		"Shib-Session-ID", "Shib-Identity-Provider", "Kubeflow-Userid", "SM_USER", "IV-User", "IV-Groups", "IV-Creds", "X-RH-Identity", "X-JWT-Assertion"},
	"address": {"X-Real-IP", "X-Real-Port", "X-Client-IP", "Client-IP", "X-Cluster-Client-IP", "X-Originating-IP", "X-ProxyUser-IP", "WL-Proxy-Client-IP",
		"Fastly-Client-IP", "Fly-Client-IP", "X-Nf-Client-Connection-IP", "X-Vercel-Forwarded-For", "X-Vercel-IP-Country", "X-Vercel-Proxied-For",
		"Akamai-Origin-Hop", "Forwarded", "X-Original-Forwarded-For", "X-Original-Remote-Addr", "X-Forwarded"},
	"what was asked for": {"X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Forwarded-Ssl", "X-Forwarded-Scheme", "X-Original-URL",
		"X-Original-URI", "X-Original-Method", "X-Original-Host", "X-Original-Proto", "X-Rewrite-URL", "X-Host", "X-Scheme", "X-Url-Scheme", "Front-End-Https",
		"Fastly-SSL"},
}

// ordinaryFields are fields of applications' clients, some with names like those above.
var ordinaryFields = []string{
	"Authorization", "X-Request-Id", "X-Correlation-Id", "X-Api-Key", "X-Api-Version", "X-Access-Token", "X-Csrf-Token", "X-Xsrf-Token",
	"X-Requested-With", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Target", "X-Amzn-Trace-Id", "X-Goog-Api-Key", "X-Goog-User-Project", "X-Goog-Upload-Command",
	"X-Ms-Version", "X-Ms-Date", "X-Github-Event", "X-Hub-Signature-256", "X-Gitlab-Token", "X-Stainless-Lang", "X-Client-Version", "X-Client-Id", "X-Client-Data",
	"X-Ratelimit-Limit", "X-B3-Traceid", "Traceparent", "Tracestate", "Baggage", "Stripe-Signature", "Webhook-Id", "Idempotency-Key", "Private-Token",
	"Range", "If-None-Match", "Origin", "Accept-Language", "Content-Type", "Dnt", "Sec-Fetch-Site", "Sec-Ch-Ua", "Priority", "Openai-Beta", "Anthropic-Version",
	"X-Grpc-Web", "Grpc-Timeout", "Depth", "Destination", "Overwrite", "X-Emails", "X-Grouping", "Remote", "X-Remote", "Tailscale", "Ssl", "X-Proxy",
	"Cf-Ray", "X-Hostname", "X-Sslmode", "X-Envoys", "X", "X-", "1-Remote-User",
}
