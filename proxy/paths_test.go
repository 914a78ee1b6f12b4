package proxy

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
)

// oddPaths are legal request targets whose path servers read in different ways.
var oddPaths = []string{
	"//", "/a//b", "/./a", "/a/../b", "/..", "/a/.", "/a%2fb", "/a%2Fb", "/a%5cb", `/a\b`, "/%2e%2e/a", "/a%2e", "/a%252fb", "/a%25",
	"/a%00", "/a%0d%0a", "/a;b", "/a/..;/b", "/a%3bb", "/%61dmin", "/a%3fb", "/a%23b", "/%c0%af", "/%ef%bc%8f", "/\xc3\xa9", "/a%ff",
}

// TestOddPaths: byte for byte where no request rule covers the host, refused where one does, over both versions.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	covered := policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{{Hosts: []string{api}, Paths: []string{"/admin*"}, Action: "deny"}}}
	l := newRig(t, allowAll, patient)
	lines := make(chan string, 1)
	port := l.rawServer(true, func(c net.Conn, r *bufio.Reader) {
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
	l.rules(allowAll, `{"`+hostPort(port)+`": {"X": "1"}}`)
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	for _, path := range oddPaths {
		request := "GET " + path + "?q=/../%2f HTTP/1.1\r\nHost: " + hostPort(port) + "\r\n\r\n"
		l.rules(allowAll, `{"`+hostPort(port)+`": {"X": "1"}}`)
		if res := ask(t, c, r, request, "GET"); res.StatusCode != 200 {
			t.Fatalf("%q without a rule: %d", path, res.StatusCode)
		}
		if got := <-lines; got != "GET "+path+"?q=/../%2f HTTP/1.1\r\n" {
			t.Errorf("%q: the upstream received %q", path, got)
		}
		l.rules(covered, `{}`)
		res := ask(t, c, r, request, "GET")
		if text := readAll(t, res.Body); res.StatusCode != 403 || !strings.Contains(text, `"ambiguous_path"`) {
			t.Errorf("%q with a rule: %d %s", path, res.StatusCode, text)
		}
		select {
		case got := <-lines:
			t.Errorf("%q with a rule: the upstream received %q", path, got)
		default:
		}
	}
	events := l.events.wait(t, 2*len(oddPaths))
	if e := events[1]; e.Verdict != policy.Deny || e.Reason != policy.ReasonAmbiguousPath || e.Path != "//" || e.Status != 403 {
		t.Errorf("event %+v", e)
	}
}

// TestOddPathsOverHTTP2 is the same over HTTP/2, frame by frame.
func TestOddPathsOverHTTP2(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	fields := make(chan []hpack.HeaderField, 1)
	port := l.frameServer(fields)
	l.rules(allowAll, `{"`+hostPort(port)+`": {"X": "1"}}`)
	h2 := newRawH2(t, l.dialPair(api, port, true, "h2"))
	for _, path := range oddPaths {
		l.rules(allowAll, `{}`)
		request := []string{":method", "GET", ":scheme", "https", ":authority", hostPort(port), ":path", path + "?q=/../%2f"}
		if got := h2.ask(request...); got != "200" {
			t.Fatalf("%q without a rule: %s", path, got)
		}
		sent := ""
		for _, f := range <-fields {
			if f.Name == ":path" {
				sent = f.Value
			}
		}
		if sent != path+"?q=/../%2f" {
			t.Errorf("%q: the upstream received %q", path, sent)
		}
		l.rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{{Hosts: []string{"*.example.com"}, Paths: []string{"/admin*"}, Action: "deny"}}}, `{}`)
		if got := h2.ask(request...); got != "403" {
			t.Errorf("%q with a rule: %s", path, got)
		}
		if len(fields) != 0 {
			t.Errorf("%q with a rule: forwarded", path)
		}
	}
}

// TestMethodsAreJudgedAsForwarded: a rule that denies a method holds for its spellings, and a WebSocket over HTTP/2, which
// goes on as a GET, is judged as one.
func TestMethodsAreJudgedAsForwarded(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	up := &recorder{}
	_, port := l.httpsServer(false, up.serve)
	l.rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{
		{Hosts: []string{api}, Methods: []string{"DELETE"}, Action: "deny"},
		{Hosts: []string{api}, Methods: []string{"GET"}, Paths: []string{"/ws"}, Action: "deny"},
		{Hosts: []string{api}, Methods: []string{"CONNECT"}, Action: "allow"},
		{Hosts: []string{api}, Methods: []string{"PUT"}, Action: "allow"},
		{Hosts: []string{api}, Paths: []string{"/put"}, Action: "deny"},
	}}, `{}`)
	c := l.dialPair(api, port, true)
	r := bufio.NewReader(c)
	for request, want := range map[string]int{
		"DELETE /": 403, "delete /": 403, "Delete /": 403, "DELETED /": 200, "PUT /put": 200, "put /put": 403, "GET /ws": 403, "GET /wss": 200,
	} {
		if res := ask(t, c, r, request+" HTTP/1.1\r\nHost: "+hostPort(port)+"\r\n\r\n", "GET"); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", request, res.StatusCode, want)
		} else {
			readAll(t, res.Body)
		}
	}
	h2 := newRawH2(t, l.dialPair(api, port, true, "h2"))
	for path, want := range map[string]string{"/ws": "403", "/other": "200"} {
		got := h2.ask(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", hostPort(port), ":path", path, "sec-websocket-version", "13")
		if got != want { // the upstream is no WebSocket server: it answers a GET
			t.Errorf("CONNECT %s: %s, want %s", path, got, want)
		}
	}
	if got, _ := up.take(); got == nil || got.RequestURI == "/ws" {
		t.Errorf("the upstream received %+v", got)
	}
}
