package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// urlDomain is a domain that programs resolve by DNS, unlike names below localhost.
const urlDomain = "preview.example.com"

// inner is a box whose programs open public URLs of the same gateway.
type inner struct {
	*harness.Intruder
	t *testing.T
}

// innerWorld starts a gateway with a box that has two public URLs, one open and one with a token, whose applications
// show the requests they get, and with another box that opens them.
func innerWorld(t *testing.T, policy map[string]any) (in inner, open, locked *visited) {
	t.Helper()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.Domain = urlDomain })
	served := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	for _, port := range []int{8000, 8001} {
		serveRaw(served, port, showing(port))
	}
	open, locked = visitURL(w, served.Box, map[string]any{"port": 8000}), visitURL(w, served.Box, map[string]any{"port": 8001, "bearer_token": true})
	return inner{w.Intrude(w.Create(map[string]any{"network_policy": policy})), t}, open, locked
}

// connect makes a TLS connection from the box to a port of a public URL's host, at its address in DNS.
func (in inner) connect(v *visited, network string, port uint16, alpn ...string) (*tls.Conn, error) {
	in.t.Helper()
	return in.connectTo(v, netip.AddrPortFrom(in.Resolve(v.host, network), port), v.host, alpn...)
}

// connectTo is connect to an address.
func (in inner) connectTo(v *visited, to netip.AddrPort, sni string, alpn ...string) (*tls.Conn, error) {
	in.t.Helper()
	tcp, err := in.Connect(to)
	if err != nil {
		return nil, err
	}
	in.t.Cleanup(func() { tcp.Close() })
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	c := tls.Client(tcp, &tls.Config{ServerName: sni, RootCAs: v.roots, NextProtos: alpn})
	return c, c.HandshakeContext(in.t.Context())
}

// sink returns the DNS answer of boxes for public URLs and denied names.
func (in inner) sink() netip.AddrPort { return netip.MustParseAddrPort("10.200.0.2:443") }

// get sends a request on a connection and returns the status and the body.
func (in inner) get(c net.Conn, host string, lines ...string) (int, string) {
	in.t.Helper()
	head := "GET /own HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(append(lines, "\r\n"), "\r\n")
	if _, err := io.WriteString(c, head); err != nil {
		in.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

// opens opens a public URL and returns the status and the body.
func (in inner) opens(v *visited, lines ...string) (int, string) {
	in.t.Helper()
	c, err := in.connect(v, "ip4", 443)
	if err != nil {
		in.t.Fatalf("%s: %v", v.host, err)
	}
	defer c.Close()
	return in.get(c, v.host, lines...)
}

// TestAttackBoxOpensPublicURLs: a box opens public URLs of another box and of itself. It gets the same answers as other
// visitors, with and without a credential, over IPv4, IPv6, HTTP/2 and the explicit proxy. The application sees the
// box's own address, whatever the box claims.
func TestAttackBoxOpensPublicURLs(t *testing.T) {
	t.Parallel()
	in, open, locked := innerWorld(t, map[string]any{"mode": "allow-all"})
	serveRaw(in.Intruder, 9000, showing(9000))
	own := visitURL(in.World, in.Box, map[string]any{"port": 9000})
	token := "Authorization: Bearer " + locked.Token
	if status, seen := in.opens(own); status != 200 || !strings.HasPrefix(seen, "9000 GET /own ") {
		t.Errorf("its own URL: %d %s", status, seen)
	}
	if status, _ := in.opens(locked); status != 401 {
		t.Errorf("without a credential: %d", status)
	}
	if status, seen := in.opens(locked, token); status != 200 || !strings.HasPrefix(seen, "8001 GET /own ") || strings.Contains(seen, locked.Token) {
		t.Errorf("with the credential: %d %s", status, seen)
	}
	if status, seen := in.opens(locked, "Authorization: Bearer "+locked.Token+"x"); status != 401 {
		t.Errorf("with a wrong credential: %d %s", status, seen)
	}
	for _, network := range []string{"ip4", "ip6"} {
		c, err := in.connect(open, network, 443)
		if err != nil {
			t.Fatal(network, err)
		}
		from, _, _ := net.SplitHostPort(c.LocalAddr().String())
		status, seen := in.get(c, open.host, "X-Forwarded-For: 198.51.100.66", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1")
		if status != 200 || strings.Count(seen, "\r\nX-Forwarded-For: "+from+"\r\n") != 1 || strings.Contains(seen, "198.51.100.66") || strings.Contains(seen, "127.0.0.1") {
			t.Errorf("%s, from %s: %d %s", network, from, status, seen)
		}
		in.Event(in.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageDNS && e.Name == open.host && e.Verdict == policy.Allow && e.Action == audit.ActionSink
		})
		visit := in.Event(open.box, func(e audit.Event) bool {
			return e.Stage == policy.StageURL && e.Peer.String() == from && e.Port == 8000
		})
		if visit.Verdict != policy.Allow || visit.Path != "/own" {
			t.Errorf("%s: the visit's event: %+v", network, visit)
		}
		_ = c.Close()
	}
	egress := in.Event(in.Box, func(e audit.Event) bool { return e.Stage == policy.StageConn && e.Name == open.host && e.BytesIn > 0 })
	if egress.Verdict != policy.Allow || egress.Action != audit.ActionSplice || egress.Reason != name.ReasonAllowAll || egress.BytesOut == 0 || egress.Port != 443 {
		t.Errorf("the connection's event: %+v", egress)
	}
	in.overHTTP2(open)
	in.byCONNECT(open)
}

// overHTTP2 opens a public URL over HTTP/2.
func (in inner) overHTTP2(v *visited) {
	in.t.Helper()
	client := http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		return in.connect(v, "ip4", 443, "h2")
	}}}
	defer client.CloseIdleConnections()
	res, err := client.Get("https://" + v.host + "/two")
	if err != nil {
		in.t.Error(err)
		return
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.ProtoMajor != 2 || res.StatusCode != 200 || !strings.HasPrefix(string(body), "8000 GET /two ") {
		in.t.Errorf("HTTP/%d: %d %s, %v", res.ProtoMajor, res.StatusCode, body, err)
	}
}

// byCONNECT opens a public URL by the explicit proxy.
func (in inner) byCONNECT(v *visited) {
	in.t.Helper()
	tcp := in.Dial(netip.MustParseAddrPort("10.200.0.1:3128"))
	if res, _ := harness.Exchange(in.t, tcp, bufio.NewReader(tcp), "CONNECT "+v.host+":443 HTTP/1.1\r\nHost: "+v.host+":443\r\n\r\n"); res.StatusCode != 200 {
		in.t.Errorf("CONNECT: %s", res.Status)
		return
	}
	c := tls.Client(tcp, &tls.Config{ServerName: v.host, RootCAs: v.roots})
	if status, seen := in.get(c, v.host); status != 200 || !strings.HasPrefix(seen, "8000 GET /own ") {
		in.t.Errorf("by the explicit proxy: %d %s", status, seen)
	}
}

// TestAttackBoxOpensPublicURLsAgainstItsPolicy: a box's policy decides about public URLs like about other names.
func TestAttackBoxOpensPublicURLsAgainstItsPolicy(t *testing.T) {
	t.Parallel()
	in, open, locked := innerWorld(t, map[string]any{"mode": "allow-all"})
	for what, c := range map[string]struct {
		policy map[string]any
		denied name.Reason // "": allowed
	}{
		"deny-all":                            {map[string]any{"mode": "deny-all"}, name.ReasonDenyAll},
		"denied by name":                      {map[string]any{"mode": "custom", "denied_domains": []string{open.host}}, name.ReasonDeniedDomain},
		"denied by domain, allowed by name":   {map[string]any{"mode": "custom", "allowed_domains": []string{open.host}, "denied_domains": []string{"*." + urlDomain}}, name.ReasonDeniedDomain},
		"other names are allowed":             {harness.Custom("api.example.com", locked.host), name.ReasonNotAllowed},
		"allowed on another port":             {harness.Custom(open.host + ":8443"), name.ReasonNotAllowed},
		"addresses are allowed":               {map[string]any{"mode": "custom", "allowed_cidrs": []string{"0.0.0.0/0", "::/0"}}, name.ReasonNotAllowed},
		"the name is allowed":                 {harness.Custom(open.host), ""},
		"its domain is allowed":               {harness.Custom("*." + urlDomain), ""},
		"another of the domain is denied":     {map[string]any{"mode": "custom", "denied_domains": []string{locked.host}}, ""},
		"everything is allowed by its policy": {map[string]any{"mode": "allow-all"}, ""},
	} {
		in.SetPolicy(in.Box, c.policy)
		since := time.Now()
		// The sink is the DNS answer for denied names and for public URLs.
		conn, err := in.connectTo(open, in.sink(), open.host)
		switch {
		case c.denied == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case c.denied == "":
			if status, seen := in.get(conn, open.host); status != 200 || !strings.HasPrefix(seen, "8000 GET /own ") {
				t.Errorf("%s: %d %s", what, status, seen)
			}
		case err == nil:
			t.Errorf("%s: a handshake with the URL", what)
		default:
			in.Denied(since, policy.StageConn, c.denied)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// TestAttackBoxReachesTheHostByAPublicURL: the access to public URLs opens nothing else of the host or another box: no
// other port, no name that is not a URL, no address of the gateway, no other host on the same connection.
func TestAttackBoxReachesTheHostByAPublicURL(t *testing.T) {
	t.Parallel()
	in, open, locked := innerWorld(t, map[string]any{"mode": "custom", "denied_domains": []string{"denied.example.com"}})
	err := in.Client.Do(t.Context(), "POST", api.BoxPath(open.box, "preview"), map[string]any{"port": 8002, "hostnames": []string{"www.example.com"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sinks := []string{"10.200.0.2", "fd42:b0c5::2"}
	for _, sink := range sinks {
		for _, port := range []uint16{80, 8600, 3128, 8443, 22, 8000} {
			to := netip.AddrPortFrom(netip.MustParseAddr(sink), port)
			if _, err := in.connectTo(open, to, open.host); err == nil {
				t.Errorf("%v: TLS with the name of a URL gets an answer", to)
			}
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(sink), 443)
		for _, name := range []string{urlDomain, "auth." + urlDomain, strings.Replace(open.host, "-8000.", "-8003.", 1),
			strings.Replace(open.host, open.box, in.Box, 1), strings.Replace(open.host, open.box, "0123456789abcdef", 1), "x." + open.host, open.host + ".example.com", "localhost", ""} {
			tcp, err := in.Connect(to)
			if err != nil {
				continue
			}
			_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
			if tls.Client(tcp, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() == nil {
				t.Errorf("%v: a handshake with %q", to, name)
			}
			_ = tcp.Close()
		}
		// Plain HTTP on the port of HTTPS, and an address instead of a name.
		if answer, _ := harness.SendAndReadAll(in.Dial(to), "GET / HTTP/1.1\r\nHost: "+open.host+"\r\nConnection: close\r\n\r\n"); strings.Contains(answer, "8000 GET") {
			t.Errorf("%v: plain HTTP is answered: %q", to, answer)
		}
	}
	// Another name that is a URL, allowed or not, on a connection for this one.
	for _, host := range []string{locked.host, "127.0.0.1:8600", "localhost", urlDomain, in.Box + "-9000." + urlDomain} {
		c, err := in.connect(open, "ip4", 443)
		if err != nil {
			t.Fatal(err)
		}
		if status, seen := in.get(c, host, "Authorization: Bearer "+locked.Token); status != 421 && status != 400 {
			t.Errorf("Host %s: %d %s", host, status, seen)
		}
		_ = c.Close()
	}
	// The gateway itself, by its addresses.
	for _, at := range []string{"10.200.0.1:443", "10.200.0.1:8600", "127.0.0.1:443", "[fd42:b0c5::1]:443"} {
		if _, err := in.connectTo(open, netip.MustParseAddrPort(at), open.host); err == nil && !strings.HasPrefix(at, "127.") {
			t.Errorf("%s: TLS with the name of a URL gets an answer", at)
		}
	}
	// A URL with somebody else's domain does not redirect the domain for other boxes.
	if slices.Contains(sinks, in.Resolve("www.example.com", "ip4").String()) {
		t.Error("the domain of another box's URL leads to it")
	}
	c := in.DialHost("www.example.com", 443)
	s := tls.Client(c, &tls.Config{ServerName: "www.example.com", RootCAs: open.roots})
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	if unknown := new(tls.CertificateVerificationError); !errors.As(s.Handshake(), &unknown) {
		t.Error("a handshake with www.example.com comes to the public URL")
	}
}

// TestAttackHeaderRuleOnAPublicURL: a header rule covers the name of a public URL. No leaf is issued for it, and the
// header is not sent.
func TestAttackHeaderRuleOnAPublicURL(t *testing.T) {
	t.Parallel()
	in, open, _ := innerWorld(t, map[string]any{"mode": "allow-all"})
	if status, _ := in.opens(open); status != 200 {
		t.Fatal(status)
	}
	box := in.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"},
		"attach_headers": map[string]any{open.host: map[string]string{"X-Key": harness.Canary}}})
	ruled := inner{in.Intrude(box), t}
	if c, err := ruled.connect(open, "ip4", 443); err == nil {
		t.Errorf("a handshake, with a certificate of %v", c.ConnectionState().PeerCertificates[0].Issuer)
	}
	ruled.Event(box, func(e audit.Event) bool {
		return e.Stage == policy.StageConn && e.Name == open.host && e.Verdict == policy.Deny && e.Reason == name.ReasonHostPort
	})
}

// TestAttackVisitFromABoxIsCut: connections of a box to a public URL end when its policy denies the name, and when the
// URL or either box is deleted.
func TestAttackVisitFromABoxIsCut(t *testing.T) {
	t.Parallel()
	allow := map[string]any{"mode": "allow-all"}
	in, _, _ := innerWorld(t, allow)
	stalled := in.Intrude(in.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	for port := 8000; port < 8003; port++ {
		serveRaw(stalled, port, func(c net.Conn) {
			_, _ = fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n")
			_, _ = io.Copy(io.Discard, c)
		})
	}
	waiting := func(in inner, port int) (*visited, *tls.Conn) {
		v := visitURL(in.World, stalled.Box, map[string]any{"port": port})
		c, err := in.connect(v, "ip4", 443)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET /sse HTTP/1.1\r\nHost: "+v.host+"\r\n\r\n")
		for r := bufio.NewReader(c); ; {
			if line, err := r.ReadString('\n'); err != nil {
				t.Fatal(err)
			} else if strings.Contains(line, "data: first") {
				return v, c
			}
		}
	}
	_, c := waiting(in, 8000)
	in.SetPolicy(in.Box, map[string]any{"mode": "custom", "denied_domains": []string{"*." + urlDomain}})
	in.Until("a visit whose name is denied is cut", func() bool { return isCut(t, c) })
	in.SetPolicy(in.Box, allow)

	v, c := waiting(in, 8001)
	if err := in.Client.Do(t.Context(), "DELETE", api.BoxPath(stalled.Box, "preview", strconv.Itoa(8001)), nil, nil); err != nil {
		t.Fatal(err)
	}
	in.Until("a visit whose URL is deleted is cut", func() bool { return isCut(t, c) })
	if _, err := in.connectTo(v, netip.MustParseAddrPort("10.200.0.2:443"), v.host); err == nil {
		t.Error("a handshake with a URL that is deleted")
	}

	second := inner{in.Intrude(in.Create(map[string]any{"network_policy": allow})), t}
	_, c = waiting(second, 8002)
	from, _, _ := net.SplitHostPort(c.LocalAddr().String())
	in.MustDelete(second.Box) // its end of the connection is removed with its network
	in.Event(stalled.Box, func(e audit.Event) bool { return e.Peer.String() == from && e.Phase == audit.PhaseEnd })

	_, c = waiting(in, 8002)
	in.MustDelete(stalled.Box)
	in.Until("a visit to a box that is deleted is cut", func() bool { return isCut(t, c) })
}
