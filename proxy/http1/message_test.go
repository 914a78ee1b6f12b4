package http1_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestFieldsOfTheHop: a header that is not forwarded, because Connection names it, matches nothing.
func TestFieldsOfTheHop(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"match": {"headers": {"X-Role": {"exact": "root"}}}, "headers": {"X-Key": "root"}}}`)
	client := l.HTTPClient(port, false)
	for connection, want := range map[string]string{"X-Role": "", "X-Other": "root"} {
		_, _ = proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Role": {"root"}, "Connection": {connection}})
		if got, _ := up.Take(); got == nil || got.Header.Get("X-Key") != want || (got.Header.Get("X-Role") == "") != (want == "") {
			t.Errorf("Connection: %s: the server received %+v", connection, got)
		}
	}
}

// TestMessages drives one connection through the kinds of messages there are.
func TestMessages(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
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
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	host := "Host: " + proxytest.HostPort(port) + "\r\n"

	res := proxytest.Ask(t, c, r, "GET /204 HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 204 {
		t.Error(res.Status)
	}
	res = proxytest.Ask(t, c, r, "GET /304 HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 304 || res.Header.Get("Etag") != `"x"` {
		t.Error(res.Status, res.Header)
	}
	res = proxytest.Ask(t, c, r, "HEAD /echo HTTP/1.1\r\n"+host+"\r\n", "HEAD")
	if res.StatusCode != 200 {
		t.Error(res.Status)
	}
	res = proxytest.Ask(t, c, r, "GET /early HTTP/1.1\r\n"+host+"\r\n", "GET")
	if res.StatusCode != 103 || res.Header.Get("Link") == "" {
		t.Error("no early hints:", res.Status)
	}
	res = proxytest.ReadResponse(t, r, "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "done" {
		t.Errorf("behind early hints: %q", got)
	}
	res = proxytest.Ask(t, c, r, "GET /trailers HTTP/1.1\r\nTE: trailers\r\n"+host+"\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "body" || res.Trailer.Get("X-Sum") != "42" {
		t.Errorf("%q with trailers %v", got, res.Trailer)
	}
	res = proxytest.Ask(t, c, r, "GET /altsvc HTTP/1.1\r\n"+host+"\r\n", "GET")
	if proxytest.ReadAll(t, res.Body); res.Header["Alt-Svc"] != nil || res.Header["Proxy-Authenticate"] != nil {
		t.Error(res.Header)
	}
	res = proxytest.Ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Content-Length: 5\r\n\r\nhello", "POST")
	if got := proxytest.ReadAll(t, res.Body); got != "POST 5 [] hello" {
		t.Errorf("%q", got)
	}
	res = proxytest.Ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Sum: 7\r\nAuthorization: mine\r\nauthorization_: x\r\n\r\n", "POST")
	if got := proxytest.ReadAll(t, res.Body); got != "POST -1 [chunked] hello X-Sum=[7] Authorization_=[x]" && got != "POST -1 [chunked] hello Authorization_=[x] X-Sum=[7]" {
		t.Errorf("%q", got)
	}
	res = proxytest.Ask(t, c, r, "POST /echo HTTP/1.1\r\n"+host+"Content-Length: 0\r\n\r\n", "POST")
	if got := proxytest.ReadAll(t, res.Body); got != "POST 0 [] " {
		t.Errorf("%q", got)
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s%s", r.URL.Path, b)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair(proxytest.API, port, true)
	host := "Host: " + proxytest.HostPort(port) + "\r\n"
	if _, err := io.WriteString(c, "GET /1 HTTP/1.1\r\n"+host+"\r\nPOST /2 HTTP/1.1\r\n"+host+"Content-Length: 1\r\n\r\nxPOST /3 HTTP/1.1\r\n"+host+
		"Transfer-Encoding: chunked\r\n\r\n1\r\ny\r\n0\r\n\r\nGET /4 HTTP/1.1\r\n"+host+"Connection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for _, want := range []string{"/1", "/2x", "/3y", "/4"} {
		if got := proxytest.ReadAll(t, proxytest.ReadResponse(t, r, "GET").Body); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after Connection: close: %v", err)
	}
}

func TestHTTP10(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPServer(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush() // chunked
		fmt.Fprint(w, "streamed")
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair("", port, false)
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: keep-alive\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	got := proxytest.ReadAll(t, c)
	if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, "\r\n\r\nstreamed") || strings.Contains(got, "chunked") || !strings.Contains(got, "Connection: close") {
		t.Errorf("%q", got)
	}
}

func TestContinueIsTheUpstreams(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(413)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b))
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	head := " HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
	if res := proxytest.Ask(t, c, r, "POST /yes"+head, "POST"); res.StatusCode != 100 {
		t.Fatal(res.Status)
	}
	if got := proxytest.ReadAll(t, proxytest.Ask(t, c, r, "hello", "POST").Body); got != "5" {
		t.Errorf("%q", got)
	}
	if res := proxytest.Ask(t, c, r, "POST /no"+head, "POST"); res.StatusCode != 413 || !res.Close {
		t.Errorf("%s, close %v", res.Status, res.Close)
	}
}

func TestCloseDelimitedResponse(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello, ")
		_, _ = io.WriteString(c, "world")
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair("", port, false)
	r := bufio.NewReader(c)
	for range 2 { // the client's connection outlives the upstream's
		res := proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
		if got := proxytest.ReadAll(t, res.Body); got != "hello, world" {
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
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, response)
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			c := l.DialPair("", port, false)
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n"); err != nil {
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
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			port := l.RawServer(false, func(c net.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, response)
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			c := l.DialPair("", port, false)
			r := bufio.NewReader(c)
			res := proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
			for res.StatusCode < 200 {
				res = proxytest.ReadResponse(t, r, "GET")
			}
			if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, "upstream_http") {
				t.Errorf("%d %s", res.StatusCode, body)
			}
		})
	}
}

// TestOddPaths: byte for byte where no request rule covers the host, refused where one does, over both versions.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	covered := policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{proxytest.API}, Paths: []string{"/admin*"}, Action: "deny"}}}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	lines := make(chan string, 1)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		for {
			first, err := r.ReadString('\n')
			for line := first; err == nil && line != "\r\n"; {
				line, err = r.ReadString('\n')
			}
			if err != nil {
				return
			}
			lines <- first
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		}
	})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"X": "1"}}`)
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	for _, path := range proxytest.OddPaths {
		request := "GET " + path + "?q=/../%2f HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"X": "1"}}`)
		if res := proxytest.Ask(t, c, r, request, "GET"); res.StatusCode != 200 {
			t.Fatalf("%q without a rule: %d", path, res.StatusCode)
		}
		if got := <-lines; got != "GET "+path+"?q=/../%2f HTTP/1.1\r\n" {
			t.Errorf("%q: the upstream received %q", path, got)
		}
		l.Rules(covered, `{}`)
		res := proxytest.Ask(t, c, r, request, "GET")
		if text := proxytest.ReadAll(t, res.Body); res.StatusCode != 403 || !strings.Contains(text, `"ambiguous_path"`) {
			t.Errorf("%q with a rule: %d %s", path, res.StatusCode, text)
		}
		select {
		case got := <-lines:
			t.Errorf("%q with a rule: the upstream received %q", path, got)
		default:
		}
	}
	events := l.Events.Wait(t, 2*len(proxytest.OddPaths))
	if e := events[1]; e.Verdict != policy.Deny || e.Reason != name.ReasonAmbiguousPath || e.Path != "//" || e.Status != 403 {
		t.Errorf("event %+v", e)
	}
}
