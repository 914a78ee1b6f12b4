package peers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"

	"boxgate/ingress"
	"boxgate/ingress/balancer"
)

// application is the application of a host's box. It answers with the name of the host, and the visitor as the gateway describes it.
func application(host string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		http.SetCookie(w, &http.Cookie{Name: "app", Value: host})
		_, _ = fmt.Fprint(w, host, " ", r.Method, " ", r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Proto"), " ", r.Header.Get("X-Forwarded-Host"), " ", n, " ", err)
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, said, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, append([]byte(host+" "), said...)) != nil {
				return
			}
		}
	})
	mux.HandleFunc("/conversation", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Trailer", "Ending")
		for in := bufio.NewReader(r.Body); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				w.Header().Set("Ending", host)
				return
			}
			_, _ = fmt.Fprint(w, host, " ", line)
			_ = rc.Flush()
		}
	})
	return mux
}

// proxied is a connection of a balancer: its header of the PROXY protocol names the visitor.
func proxied(t testing.TB, to string, visitor string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(balancerAddress)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	from := netip.MustParseAddrPort(visitor)
	header := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), from.Addr().AsSlice()...)
	header = binary.BigEndian.AppendUint16(append(header, 192, 0, 2, 1), from.Port())
	if _, err := c.Write(binary.BigEndian.AppendUint16(header, 443)); err != nil {
		t.Fatal(err)
	}
	return c
}

const balancerAddress = "127.0.0.99"

func behind(c *ingress.Config) {
	c.Balancers = balancer.List{netip.MustParsePrefix(balancerAddress + "/32")}
}

// secured is TLS without a server name.
func secured(t testing.TB, c net.Conn, protocol string) net.Conn {
	t.Helper()
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	return secure
}

// TestRequestsOfABalancer: the host name of each request on a connection of a balancer decides which host of the fleet serves it. The
// application gets the visitor's address and scheme as the host has them which the balancer has connected to, whatever the visitor claims.
func TestRequestsOfABalancer(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", application("aaaaaa"), behind)
	newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
	newHost(t, d, "cccccc", application("cccccc"), nil)
	for _, scheme := range []string{"http", "https"} {
		address := map[string]string{"http": a.plain, "https": a.address}[scheme]
		c := proxied(t, address, "198.51.100.7:4711")
		if scheme == "https" {
			c = secured(t, c, "http/1.1")
		}
		in := bufio.NewReader(c)
		for _, owner := range []string{"aaaaaa", "bbbbbb", "cccccc", "bbbbbb", "aaaaaa", "cccccc"} {
			body := strings.Repeat("x", 100_000)
			_, err := fmt.Fprintf(c, "POST /p?boxgate_token=wrong HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: 203.0.113.1\r\nForwarded: for=203.0.113.1\r\nX-Forwarded-Proto: gopher\r\nContent-Length: %d\r\n\r\n%s", nameOf(owner), len(body), body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s, host %s: %v", scheme, owner, err)
			}
			text, err := io.ReadAll(response.Body)
			if want := fmt.Sprintf("%s POST 198.51.100.7 %s %s 100000 <nil>", owner, scheme, nameOf(owner)); string(text) != want || err != nil {
				t.Errorf("%s: %q, %v; want %q", scheme, text, err, want)
			}
			if cookie := response.Header.Values("Set-Cookie"); len(cookie) != 1 || cookie[0] != "app="+owner {
				t.Errorf("%s, host %s: cookies %q", scheme, owner, cookie)
			}
		}
		// Pipelined requests get the answers of their own hosts, in order.
		var all strings.Builder
		for _, owner := range []string{"bbbbbb", "cccccc", "aaaaaa"} {
			fmt.Fprintf(&all, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", nameOf(owner))
		}
		_, _ = io.WriteString(c, all.String())
		for _, owner := range []string{"bbbbbb", "cccccc", "aaaaaa"} {
			response, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := io.ReadAll(response.Body); !strings.HasPrefix(string(text), owner+" GET ") {
				t.Errorf("%s, pipelined for host %s: %q", scheme, owner, text)
			}
		}
	}
}

// over returns a client that reaches a host as a balancer does, over a version of HTTP.
func over(t testing.TB, to *host, visitor string, version2 bool) *http.Client {
	if !version2 {
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return proxied(t, to.plain, visitor), nil }}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: time.Minute}
	}
	transport := &http2.Transport{DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) {
		return secured(t, proxied(t, to.address, visitor), "h2"), nil
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestStreamsOfABalancer: a conversation in one request, its trailers, the 100 that a large upload waits for, and WebSockets pass between a
// balancer and the host with the box.
func TestStreamsOfABalancer(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", nil, behind)
	newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
	for _, version2 := range []bool{false, true} {
		scheme := map[bool]string{false: "http", true: "https"}[version2]
		c := over(t, a, "198.51.100.7:4711", version2)
		r, w := io.Pipe()
		request, _ := http.NewRequest(http.MethodPost, scheme+"://"+nameOf("bbbbbb")+"/conversation", r)
		go func() { _, _ = io.WriteString(w, "one\n") }()
		response, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(response.Body)
		for _, said := range []string{"one\n", "two\n", "three\n"} {
			if said != "one\n" {
				_, _ = io.WriteString(w, said)
			}
			if line, err := in.ReadString('\n'); line != "bbbbbb "+said || err != nil {
				t.Fatalf("HTTP/2 %v: %q, %v", version2, line, err)
			}
		}
		_ = w.Close()
		if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil || response.Trailer.Get("Ending") != "bbbbbb" {
			t.Errorf("HTTP/2 %v: %q, %v, trailers %v", version2, rest, err, response.Trailer)
		}
		large := bytes.NewReader(make([]byte, 8<<20))
		request, _ = http.NewRequest(http.MethodPut, scheme+"://"+nameOf("bbbbbb")+"/large", large)
		request.Header.Set("Expect", "100-continue")
		if response, err = c.Do(request); err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(response.Body); !strings.HasPrefix(string(text), "bbbbbb PUT 198.51.100.7 "+scheme) || !strings.HasSuffix(string(text), " 8388608 <nil>") {
			t.Errorf("HTTP/2 %v: %q", version2, text)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+nameOf("bbbbbb")+"/socket", &websocket.DialOptions{HTTPClient: over(t, a, "198.51.100.7:4711", false)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }()
	for _, said := range []string{"hello", strings.Repeat("y", 20_000)} {
		if err := c.Write(ctx, websocket.MessageText, []byte(said)); err != nil {
			t.Fatal(err)
		}
		if _, heard, err := c.Read(ctx); err != nil || string(heard) != "bbbbbb "+said {
			t.Fatalf("%.20q, %v", heard, err)
		}
	}
}

// requestsBy opens a connection to a host as another host does, with a certificate, and sends a request.
func requestsBy(t testing.TB, to *host, header balancer.Passed, key []byte, cert *tls.Certificate, name string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", to.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(header.Append(nil, key)); err != nil {
		return "", err
	}
	settings := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
	if cert != nil {
		settings.Certificates = []tls.Certificate{*cert}
	}
	secure := tls.Client(c, settings)
	if err := secure.Handshake(); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(secure), nil)
	if err != nil {
		return "", err
	}
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

// TestRequestsThatAreRefused: a connection with requests of a visitor takes a header and a certificate of one member, and serves the host name
// of its header alone. Requests go over two hosts at most.
func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	newHost(t, d, "aaaaaa", nil, nil)
	b := newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
	newHost(t, d, "cccccc", application("cccccc"), nil)
	stranger := newDirectory(t)
	stranger.enter(t, "aaaaaa")
	header := func(name string, mode balancer.Mode) balancer.Passed {
		return balancer.Passed{From: netip.MustParseAddrPort("203.0.113.9:1"), To: netip.MustParseAddrPort("192.0.2.2:443"), Name: name, Mode: mode,
			Sender: "aaaaaa", Receiver: "bbbbbb", At: time.Now(), Nonce: balancer.NewNonce()}
	}
	own, key := nameOf("bbbbbb"), []byte("aaaaaabbbbbb")
	if text, err := requestsBy(t, b, header(own, balancer.ModeHTTPS), key, d.certs["aaaaaa"], own); err != nil || !strings.Contains(text, " 203.0.113.9 https ") {
		t.Fatalf("a request of a member: %q, %v", text, err)
	}
	other := "other-8000." + domain
	for what, try := range map[string]func() (string, error){
		"without a certificate": func() (string, error) { return requestsBy(t, b, header(own, balancer.ModeHTTPS), key, nil, own) },
		"the certificate of another host": func() (string, error) {
			return requestsBy(t, b, header(own, balancer.ModeHTTPS), key, d.certs["cccccc"], own)
		},
		"a certificate of a stranger": func() (string, error) {
			return requestsBy(t, b, header(own, balancer.ModeHTTP), key, stranger.certs["aaaaaa"], own)
		},
		"a header of a stranger": func() (string, error) {
			return requestsBy(t, b, header(own, balancer.ModeHTTPS), []byte("made up"), d.certs["aaaaaa"], own)
		},
		"another name than in the header": func() (string, error) {
			return requestsBy(t, b, header(other, balancer.ModeHTTP), key, d.certs["aaaaaa"], own)
		},
		"a box of a third host (loop)": func() (string, error) {
			return requestsBy(t, b, header(nameOf("cccccc"), balancer.ModeHTTP), key, d.certs["aaaaaa"], nameOf("cccccc"))
		},
		"an unknown mode": func() (string, error) { return requestsBy(t, b, header(own, 4), key, d.certs["aaaaaa"], own) },
	} {
		if text, err := try(); err == nil {
			t.Errorf("%s: %q", what, text)
		}
	}
}

// TestHostThatLeavesPassesNoRequestOn: connections between hosts outlive requests. A host that has left passes no further request on over them,
// and gets none.
func TestHostThatLeavesPassesNoRequestOn(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{"aaaaaa", "bbbbbb"} {
		d := newDirectory(t)
		a := newHost(t, d, "aaaaaa", nil, behind)
		newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
		c := over(t, a, "198.51.100.7:4711", true)
		if text, err := get(c, nameOf("bbbbbb")); err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		d.leave(gone)
		if text, err := get(c, nameOf("bbbbbb")); err == nil {
			t.Errorf("host %s has left: %q", gone, text)
		}
	}
}

// TestCertificateRenewed: the other host refuses requests over a connection whose certificate has expired, and connections in use never end. So
// requests leave a connection once this host has another certificate.
func TestCertificateRenewed(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", nil, behind)
	newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
	c := over(t, a, "198.51.100.7:4711", true)
	for request, connections := range []uint64{1, 1, 2, 2} {
		if request == 2 {
			d.renew(t, "aaaaaa")
		}
		if text, err := get(c, nameOf("bbbbbb")); err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		if n := a.peers.passed.Load(); n != connections {
			t.Fatalf("%d connections, want %d", n, connections)
		}
	}
}

// TestRequestsPassedOnAreBounded: requests to one host take part of the places, and the host's own URLs keep theirs. A host that does not answer
// is a 502.
func TestRequestsPassedOnAreBounded(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", application("aaaaaa"), func(c *ingress.Config) { behind(c); c.Requests = 32 })
	held := make(chan struct{})
	t.Cleanup(func() { close(held) })
	newHost(t, d, "bbbbbb", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}), nil)
	open := 0
	for i := range 32 {
		response, err := over(t, a, fmt.Sprintf("198.51.%d.7:4711", i+1), false).Get("http://" + nameOf("bbbbbb") + "/")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		switch response.StatusCode {
		case http.StatusOK:
			open++
		case http.StatusTooManyRequests:
		default:
			t.Error(response.Status)
		}
	}
	if open == 0 || open > 8 { // half of half
		t.Errorf("%d requests to one host; there are 16 places", open)
	}
	response, err := over(t, a, "198.51.100.7:4711", false).Get("http://" + nameOf("aaaaaa") + "/")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("a URL of the host itself: %v, %v", response, err)
	}
	d.mu.Lock()
	d.at["cccccc"], d.keys["cccccc"] = netip.MustParseAddrPort("127.0.0.1:9"), []byte("none")
	d.mu.Unlock()
	response, err = over(t, a, "198.51.100.7:4711", false).Get("http://" + nameOf("cccccc") + "/")
	if err != nil || response.StatusCode != http.StatusBadGateway {
		t.Errorf("a host that does not answer: %v, %v", response, err)
	}
}

// TestDomainsOfOtherHosts: visitors of a domain reach the host that has claimed it by any host, also one that has a URL with the domain itself.
// Claims to names that all hosts serve, and claims of hosts that have left, do not count.
func TestDomainsOfOtherHosts(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	a := newHost(t, d, "aaaaaa", application("aaaaaa"), behind)
	b := newHost(t, d, "bbbbbb", application("bbbbbb"), nil)
	ask := func(roots *host) (passed, handed string) {
		passed, err := get(visitor(t, "127.0.0.9", a, roots.roots, true), ownDomain)
		if err != nil {
			passed = err.Error()
		}
		handed, err = get(over(t, a, "198.51.100.7:4711", true), ownDomain)
		if err != nil {
			handed = err.Error()
		}
		return passed, handed
	}
	claim := func(name, by string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.claims[name] = by
	}
	if passed, handed := ask(a); !strings.HasPrefix(passed, "aaaaaa GET 127.0.0.9 ") || !strings.HasPrefix(handed, "aaaaaa GET 198.51.100.7 ") {
		t.Errorf("without a claim: %q, %q", passed, handed)
	}
	claim(ownDomain, "bbbbbb")
	if passed, handed := ask(b); !strings.HasPrefix(passed, "bbbbbb GET 127.0.0.9 https "+ownDomain) || !strings.HasPrefix(handed, "bbbbbb GET 198.51.100.7 https "+ownDomain) {
		t.Errorf("of host b: %q, %q", passed, handed)
	}
	for _, name := range []string{nameOf("aaaaaa"), "auth." + domain} {
		claim(name, "bbbbbb")
		if owner, ok := a.peers.Owner(name); ok {
			t.Errorf("%s is host %s's by a claim", name, owner)
		}
	}
	d.mu.Lock()
	delete(d.at, "bbbbbb")
	d.mu.Unlock()
	if passed, handed := ask(a); !strings.HasPrefix(passed, "aaaaaa ") || !strings.HasPrefix(handed, "aaaaaa ") {
		t.Errorf("of a host that left: %q, %q", passed, handed)
	}
}
