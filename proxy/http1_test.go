package proxy

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

const api = "api.example.com"

func hostPort(port uint16) string { return api + ":" + strconv.Itoa(int(port)) }

// TestInjectionReplacesEveryVariant sends the injected header in every spelling an origin server might take for it.
func TestInjectionReplacesEveryVariant(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	received := make(chan string, 1)
	port := l.rawServer(true, func(c net.Conn, r *bufio.Reader) {
		var raw strings.Builder
		for {
			line, err := r.ReadString('\n')
			raw.WriteString(line)
			if err != nil {
				return
			}
			if line == "\r\n" {
				received <- raw.String()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})
	l.policy(allowAll, map[string]map[string]string{hostPort(port): {"X-Api-Key": "s3cret"}})
	c := l.dialPair(api, port, true)
	res := ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\nX-Api-Key: a\r\nx-api-key: b\r\nX_API_KEY: c\r\n"+
		"x_api-key: d\r\nX-Keep: yes\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: x\r\nKeep-Alive: 5\r\n\r\n", "GET")
	if got := readAll(t, res.Body); got != "ok" {
		t.Fatalf("%d %q", res.StatusCode, got)
	}
	e := l.events.wait(t, 1)[0]
	want := "GET / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\nX-Keep: yes\r\nX-Api-Key: s3cret\r\n\r\n"
	if got := <-received; got != want {
		t.Errorf("the upstream received\n%s\nwant\n%s", got, want)
	}
	if e.Verdict != policy.Allow || e.Action != audit.ActionIntercept || len(e.Headers) != 1 || e.Headers[0] != "X-Api-Key" || e.Status != 200 || e.BytesIn != 2 {
		t.Errorf("event %+v", e)
	}
}

func TestPlainHTTPGetsNoSecret(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpServer(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Authorization"))
	})
	l.policy(allowAll, secretFor(api, port))
	c := l.dialPair("", port, false)
	res := ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
	if got := readAll(t, res.Body); res.StatusCode != 200 || got != "" {
		t.Errorf("%d, secret %q", res.StatusCode, got)
	}
}

// TestNextRequestUsesTheNewValue changes the rule while the connection is open.
func TestNextRequestUsesTheNewValue(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Authorization")) })
	l.policy(allowAll, secretFor(api, port))
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	req := "GET / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n"
	if got := readAll(t, ask(t, c, r, req, "GET").Body); got != "Bearer s3cret" {
		t.Errorf("first %q", got)
	}
	l.policy(allowAll, map[string]map[string]string{hostPort(port): {"Authorization": "Bearer rotated"}})
	if got := readAll(t, ask(t, c, r, req, "GET").Body); got != "Bearer rotated" {
		t.Errorf("second %q", got)
	}
	l.policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	if res := ask(t, c, r, req, "GET"); res.StatusCode != 403 {
		t.Errorf("after deny-all: %d", res.StatusCode)
	}
}

// TestAuthorityMustBeTheSNI tries other names, on the first and on a later request.
func TestAuthorityMustBeTheSNI(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var reached atomic.Int32
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { reached.Add(1) })
	l.policy(allowAll, secretFor(api, port))
	ps := strconv.Itoa(int(port))
	for name, try := range map[string]struct {
		request string
		status  int
	}{
		"another host":           {"GET / HTTP/1.1\r\nHost: evil.example.com:" + ps + "\r\n\r\n", 421},
		"another port":           {"GET / HTTP/1.1\r\nHost: api.example.com:1\r\n\r\n", 421},
		"no port":                {"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 421},
		"suffix":                 {"GET / HTTP/1.1\r\nHost: api.example.com.evil.com:" + ps + "\r\n\r\n", 421},
		"address":                {"GET / HTTP/1.1\r\nHost: 127.0.0.1:" + ps + "\r\n\r\n", 421},
		"absolute, another":      {"GET https://evil.example.com/ HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n", 400},
		"absolute, both another": {"GET https://evil.example.com:" + ps + "/ HTTP/1.1\r\nHost: evil.example.com:" + ps + "\r\n\r\n", 421},
		"absolute, plain scheme": {"GET http://" + hostPort(port) + "/ HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n", 400},
		"CONNECT":                {"CONNECT " + hostPort(port) + " HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n", 405},
		"TRACE":                  {"TRACE / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n", 405},
		"TRACK":                  {"TRACK / HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n", 405},
		"port out of range":      {"GET / HTTP/1.1\r\nHost: api.example.com:99999\r\n\r\n", 400},
		"empty port":             {"GET / HTTP/1.1\r\nHost: api.example.com:\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				c := l.dialPair(api, port, true)
				r := bufio.NewReader(c)
				if !first {
					if res := ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET"); res.StatusCode != 200 {
						t.Fatal(res.Status)
					}
				}
				before := reached.Load()
				res := ask(t, c, r, try.request, "GET")
				if res.StatusCode != try.status || res.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("first=%v: %d %s", first, res.StatusCode, res.Header.Get("Content-Type"))
				}
				if reached.Load() != before {
					t.Errorf("first=%v: the upstream was reached", first)
				}
			}
		})
	}
}

func TestAbsoluteFormGoesOnAsOrigin(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })
	l.policy(allowAll, nil)
	c := l.dialPair(api, port, true)
	res := ask(t, c, bufio.NewReader(c), "GET https://API.example.com:"+strconv.Itoa(int(port))+"/x?y HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
	if got := readAll(t, res.Body); got != "/x?y" {
		t.Errorf("%d %q", res.StatusCode, got)
	}
}

// TestEachPlainRequestIsDecided lets the second request of a connection name another host.
func TestEachPlainRequestIsDecided(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpServer(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	l.policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{api}}, nil)
	c := l.dialPair("", port, false)
	r := bufio.NewReader(c)
	res := ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
	if got := readAll(t, res.Body); got != "hello" {
		t.Fatalf("%d %q", res.StatusCode, got)
	}
	res = ask(t, c, r, "GET /x?secret=1 HTTP/1.1\r\nHost: evil.example.com:"+strconv.Itoa(int(port))+"\r\n\r\n", "GET")
	var p problem
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 403 || p.Reason != policy.ReasonNotAllowed || p.Host != "evil.example.com" || p.Status != 403 {
		t.Errorf("%d %+v", res.StatusCode, p)
	}
	res = ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
	if got := readAll(t, res.Body); got != "hello" {
		t.Errorf("after a refusal: %d %q", res.StatusCode, got)
	}
	e := l.events.wait(t, 3)[1]
	if e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Name != "evil.example.com" || e.Path != "/x" || e.Status != 403 || e.Stage != policy.StageHTTP {
		t.Errorf("event %+v", e)
	}
}

func TestRequestRules(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	l.policy(policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{
		{Hosts: []string{hostPort(port)}, Paths: []string{"/admin*"}, Action: "deny"},
		{Hosts: []string{hostPort(port)}, Methods: []string{"DELETE"}, Action: "deny"},
	}}, nil)
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	for request, status := range map[string]int{
		"GET /": 200, "GET /admin": 403, "GET /x/../admin": 403, "GET /%61dmin": 403, "DELETE /": 403, "GET //admin?x": 403,
	} {
		res := ask(t, c, r, request+" HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
		readAll(t, res.Body)
		if res.StatusCode != status {
			t.Errorf("%s: %d, want %d", request, res.StatusCode, status)
		}
	}
}

func TestUntrustedUpstreamGetsNothing(t *testing.T) {
	t.Parallel()
	l, other := newLab(t), newLab(t)
	var reached atomic.Int32
	_, port := other.httpsServer(false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l.policy(allowAll, secretFor(api, port))
	c := l.dialPair(api, port, true)
	res := ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
	if body := readAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, string(policy.ReasonUpstreamTLS)) || strings.Contains(body, "s3cret") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if e := l.events.wait(t, 1)[0]; e.Reason != policy.ReasonUpstreamTLS || e.Verdict != policy.Deny || e.Headers != nil || reached.Load() != 0 {
		t.Errorf("event %+v, reached %d", e, reached.Load())
	}
}

func TestUnresolvedAndUnreachable(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(t, ln)
	_ = ln.Close()
	l.names["nowhere.example.com"] = nil
	l.policy(allowAll, nil)
	for name, want := range map[string]policy.Reason{"nowhere.example.com": policy.ReasonUnresolved, api: policy.ReasonUnreachable} {
		c := l.dialPair(name, port, true)
		res := ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+name+":"+strconv.Itoa(int(port))+"\r\n\r\n", "GET")
		if body := readAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, string(want)) {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
}

// TestMessages drives one connection through the kinds of messages there are.
func TestMessages(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		case "/early":
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			fmt.Fprint(w, "done")
		case "/trailers":
			w.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Sum", "42")
		case "/altsvc":
			w.Header().Add("Alt-Svc", `h3=":443"; ma=2592000,h3-29=":443"`)
			w.Header().Set("Proxy-Authenticate", "x")
		case "/echo":
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %d %v %s", r.Method, r.ContentLength, r.TransferEncoding, b)
			for k, v := range r.Trailer {
				fmt.Fprintf(w, " %s=%s", k, v)
			}
		}
	})
	l.policy(allowAll, secretFor(api, port))
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	host := "Host: " + hostPort(port) + "\r\n"

	res := ask(t, c, r, "GET /204 HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 204 {
		t.Error(res.Status)
	}
	res = ask(t, c, r, "GET /304 HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 304 || res.Header.Get("Etag") != `"x"` {
		t.Error(res.Status, res.Header)
	}
	res = ask(t, c, r, "HEAD /echo HTTP/1.1\r\n"+host+"\r\n", "HEAD")
	if res.StatusCode != 200 {
		t.Error(res.Status)
	}
	res = ask(t, c, r, "GET /early HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 103 || res.Header.Get("Link") == "" {
		t.Error("no early hints:", res.Status)
	}
	res = readResponse(t, r, "GET")
	if got := readAll(t, res.Body); got != "done" {
		t.Errorf("behind early hints: %q", got)
	}
	res = ask(t, c, r, "GET /trailers HTTP/1.1\r\nTE: trailers\r\n"+host+"\r\n", "GET")
	if got := readAll(t, res.Body); got != "body" || res.Trailer.Get("X-Sum") != "42" {
		t.Errorf("%q with trailers %v", got, res.Trailer)
	}
	res = ask(t, c, r, "GET /altsvc HTTP/1.1\r\n"+host+"\r\n", "GET")
	if readAll(t, res.Body); res.Header["Alt-Svc"] != nil || res.Header["Proxy-Authenticate"] != nil {
		t.Error(res.Header)
	}
	res = ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Content-Length: 5\r\n\r\nhello", "POST")
	if got := readAll(t, res.Body); got != "POST 5 [] hello" {
		t.Errorf("%q", got)
	}
	res = ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Sum: 7\r\nAuthorization: mine\r\nauthorization_: x\r\n\r\n", "POST")
	if got := readAll(t, res.Body); got != "POST -1 [chunked] hello X-Sum=[7] Authorization_=[x]" && got != "POST -1 [chunked] hello Authorization_=[x] X-Sum=[7]" {
		t.Errorf("%q", got)
	}
	res = ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Content-Length: 0\r\n\r\n", "POST")
	if got := readAll(t, res.Body); got != "POST 0 [] " {
		t.Errorf("%q", got)
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s%s", r.URL.Path, b)
	})
	l.policy(allowAll, nil)
	c := l.dialPair(api, port, true)
	host := "Host: " + hostPort(port) + "\r\n"
	if _, err := io.WriteString(c, "GET /1 HTTP/1.1\r\n"+host+"\r\nPOST /2 HTTP/1.1\r\n"+host+"Content-Length: 1\r\n\r\nxPOST /3 HTTP/1.1\r\n"+host+
		"Transfer-Encoding: chunked\r\n\r\n1\r\ny\r\n0\r\n\r\nGET /4 HTTP/1.1\r\n"+host+"Connection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for _, want := range []string{"/1", "/2x", "/3y", "/4"} {
		if got := readAll(t, readResponse(t, r, "GET").Body); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after Connection: close: %v", err)
	}
}

func TestHTTP10(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpServer(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush() // chunked
		fmt.Fprint(w, "streamed")
	})
	l.policy(allowAll, nil)
	c := l.dialPair("", port, false)
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: "+hostPort(port)+"\r\nConnection: keep-alive\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got := readAll(t, c)
	if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, "\r\n\r\nstreamed") || strings.Contains(got, "chunked") || !strings.Contains(got, "Connection: close") {
		t.Errorf("%q", got)
	}
}

func TestContinueIsTheUpstreams(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, port := l.httpsServer(false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(413)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b))
	})
	l.policy(allowAll, nil)
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	head := " HTTP/1.1\r\nHost: " + hostPort(port) + "\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
	if res := ask(t, c, r, "POST /yes"+head, "POST"); res.StatusCode != 100 {
		t.Fatal(res.Status)
	}
	if got := readAll(t, ask(t, c, r, "hello", "POST").Body); got != "5" {
		t.Errorf("%q", got)
	}
	if res := ask(t, c, r, "POST /no"+head, "POST"); res.StatusCode != 413 || !res.Close {
		t.Errorf("%s, close %v", res.Status, res.Close)
	}
}

func TestCloseDelimitedResponse(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	port := l.rawServer(false, func(c net.Conn, r *bufio.Reader) {
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello, ")
		_, _ = io.WriteString(c, "world")
	})
	l.policy(allowAll, nil)
	c := l.dialPair("", port, false)
	r := bufio.NewReader(c)
	for range 2 { // the client's connection outlives the upstream's
		res := ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
		if got := readAll(t, res.Body); got != "hello, world" {
			t.Errorf("%q", got)
		}
	}
}

// TestCutResponseDoesNotLookWhole lets the upstream break off inside each kind of body.
func TestCutResponseDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{
		"length":  "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"garbage": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			port := l.rawServer(false, func(c net.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, response)
			})
			l.policy(allowAll, nil)
			c := l.dialPair("", port, false)
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return // nothing was told at all: fine
			}
			if _, err := io.ReadAll(res.Body); err == nil {
				t.Error("the client took a part for the whole")
			}
		})
	}
}

func TestBadUpstreamIs502(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{
		"both framings": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"not HTTP":      "SSH-2.0-x\r\n\r\n",
		"nothing":       "",
		"switches":      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"too large":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 70<<10) + "\r\n\r\n",
		"endless 1xx":   strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			port := l.rawServer(false, func(c net.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, response)
			})
			l.policy(allowAll, nil)
			c := l.dialPair("", port, false)
			r := bufio.NewReader(c)
			res := ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
			for res.StatusCode < 200 {
				res = readResponse(t, r, "GET")
			}
			if body := readAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, "upstream_http") {
				t.Errorf("%d %s", res.StatusCode, body)
			}
		})
	}
}

// TestEventsPassAtOnce waits for the first event of a stream that does not end.
func TestEventsPassAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	release := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		w.(http.Flusher).Flush()
		<-release
		fmt.Fprint(w, "data: two\n\n")
	}
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		_, port := l.httpsServer(h2, handler)
		l.policy(allowAll, nil)
		res, err := l.httpClient(port, h2).Get("https://" + hostPort(port) + "/")
		if err != nil {
			t.Fatal(name, err)
		}
		r := bufio.NewReader(res.Body)
		if line, err := r.ReadString('\n'); line != "data: one\n" {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
		if name == "h1" {
			release <- struct{}{}
		} else {
			go func() { release <- struct{}{} }()
		}
		if got := readAll(t, r); !strings.Contains(got, "two") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestBulk moves 64 MiB down and up.
func TestBulk(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	whole := sha256.New()
	for range size >> 20 {
		whole.Write(block)
	}
	want := fmt.Sprintf("%x", whole.Sum(nil))
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			sum := sha256.New()
			n, _ := io.Copy(sum, r.Body)
			fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
			return
		}
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		for range size >> 20 {
			_, _ = w.Write(block)
		}
	}
	l := newLab(t)
	for _, kind := range []string{"h1", "h2", "h2 to h1"} {
		_, port := l.httpsServer(kind == "h2", handler)
		l.policy(allowAll, nil)
		client := l.httpClient(port, kind != "h1")
		for _, path := range []string{"/length", "/chunked"} {
			res, err := client.Get("https://" + hostPort(port) + path)
			if err != nil {
				t.Fatal(kind, err)
			}
			sum := sha256.New()
			if _, err := io.Copy(sum, res.Body); err != nil {
				t.Fatal(kind, err)
			}
			if got := fmt.Sprintf("%x", sum.Sum(nil)); got != want {
				t.Errorf("%s down %s: differs", kind, path)
			}
			body := io.Reader(&repeated{block: block, n: size >> 20})
			req, err := http.NewRequest("POST", "https://"+hostPort(port)+path, body)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/length" {
				req.ContentLength = size
			}
			res, err = client.Do(req)
			if err != nil {
				t.Fatal(kind, err)
			}
			if got := readAll(t, res.Body); got != fmt.Sprintf("%d %s", size, want) {
				t.Errorf("%s up %s: %s", kind, path, got)
			}
		}
	}
}

// repeated yields a block n times.
type repeated struct {
	block []byte
	n     int
	at    int
}

func (r *repeated) Read(b []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.at, r.n = 0, r.n-1
	}
	return n, nil
}

// TestEarlyAnswerPassesWhileTheUploadRuns lets the server answer before it has the body, and then echo the rest.
func TestEarlyAnswerPassesWhileTheUploadRuns(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	port := l.rawServer(true, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
		_, _ = io.CopyN(c, req.Body, 10)
	})
	l.policy(allowAll, nil)
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	res := ask(t, c, r, "POST / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\nContent-Length: 10\r\n\r\nhello", "POST")
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	if _, err := io.WriteString(c, "world"); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, res.Body); got != "helloworld" {
		t.Errorf("%q", got)
	}
}

// TestRejectedUploadIsTold lets the server answer 413 and stop reading, while the client goes on sending for a while.
func TestRejectedUploadIsTold(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	port := l.rawServer(false, func(c net.Conn, r *bufio.Reader) {
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
	})
	l.policy(allowAll, nil)
	c := l.dialPair("", port, false)
	go func() {
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\nContent-Length: 10000000\r\n\r\n")
		for range 10 {
			if _, err := c.Write(make([]byte, 10000)); err != nil {
				return
			}
		}
	}()
	res := readResponse(t, bufio.NewReader(c), "POST")
	if got := readAll(t, res.Body); res.StatusCode != 413 || got != "no" || !res.Close {
		t.Errorf("%s %q close %v", res.Status, got, res.Close)
	}
}

// TestStaleConnectionIsRetried lets the server close kept connections without a word just when they are used.
func TestStaleConnectionIsRetried(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var conns atomic.Int32
	port := l.rawServer(false, func(c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_, _ = http.ReadRequest(r) // taken, and then closed without an answer
	})
	l.policy(allowAll, nil)
	c := l.dialPair("", port, false)
	r := bufio.NewReader(c)
	for i := range 3 {
		res := ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET")
		if got := readAll(t, res.Body); got != "ok" {
			t.Fatalf("request %d: %d %q", i, res.StatusCode, got)
		}
	}
	if got := conns.Load(); got != 3 {
		t.Errorf("%d connections", got)
	}
	res := ask(t, c, r, "POST / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\nContent-Length: 1\r\n\r\nx", "POST")
	if readAll(t, res.Body); res.StatusCode != 502 {
		t.Errorf("a POST was repeated: %s", res.Status)
	}
}

// TestUpstreamConnectionIsShared counts connections over several clients of one box, and none over boxes.
func TestUpstreamConnectionIsShared(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var peers sync.Map
	_, port := l.httpServer(func(w http.ResponseWriter, r *http.Request) {
		peers.Store(r.RemoteAddr, true)
		fmt.Fprint(w, "ok")
	})
	l.policy(allowAll, nil)
	for i := range 5 {
		c := l.dialPair("", port, false)
		res := ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+hostPort(port)+"\r\nConnection: close\r\n\r\n", "GET")
		readAll(t, res.Body)
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		l.events.wait(t, i+1)
		waitFor(t, func() bool { return idleUpstreams(l.p) == 1 })
	}
	if got := count(&peers); got != 1 {
		t.Errorf("%d upstream connections for five clients of a box", got)
	}
	l.p.CloseBox(l.box.ID)
	if got := idleUpstreams(l.p); got != 0 {
		t.Errorf("%d connections kept for a closed box", got)
	}
}

func count(m *sync.Map) int {
	n := 0
	m.Range(func(any, any) bool { n++; return true })
	return n
}

func idleUpstreams(p *Proxy) int {
	p.upstreams.h1.mu.Lock()
	defer p.upstreams.h1.mu.Unlock()
	n := 0
	for _, list := range p.upstreams.h1.idle {
		n += len(list)
	}
	return n
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the condition did not come true")
		}
	}
}

// TestTighteningCutsARequestUnderWay changes the policy while a response streams.
func TestTighteningCutsARequestUnderWay(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		_, port := l.httpsServer(h2, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "one\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		l.policy(allowAll, nil)
		res, err := l.httpClient(port, h2).Get("https://" + hostPort(port) + "/")
		if err != nil {
			t.Fatal(name, err)
		}
		r := bufio.NewReader(res.Body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(name, err)
		}
		l.policy(policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{api}}, nil)
		start := time.Now()
		l.p.Recheck(l.box.ID)
		if _, err := r.ReadByte(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream went on, or ended as if whole: %v", name, err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("%s: cut after %v", name, d)
		}
	}
	for _, e := range l.events.wait(t, 2) {
		if e.Reason != policy.ReasonPolicyChanged || e.Verdict != policy.Deny {
			t.Errorf("event %+v", e)
		}
	}
}
