package proxy_test

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/proxy/proxytest"
)

// TestOddPaths: byte for byte where no request rule covers the host, refused where one does, over both versions.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	covered := policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{{Hosts: []string{proxytest.API}, Paths: []string{"/admin*"}, Action: "deny"}}}
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
	if e := events[1]; e.Verdict != policy.Deny || e.Reason != policy.ReasonAmbiguousPath || e.Path != "//" || e.Status != 403 {
		t.Errorf("event %+v", e)
	}
}

// TestOddPathsOverHTTP2 is the same over HTTP/2, frame by frame.
func TestOddPathsOverHTTP2(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	fields := make(chan []hpack.HeaderField, 1)
	port := frameServer(l, fields)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"X": "1"}}`)
	h2 := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	for _, path := range proxytest.OddPaths {
		l.Rules(proxytest.AllowAll, `{}`)
		request := []string{":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path + "?q=/../%2f"}
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
		l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{{Hosts: []string{"*.example.com"}, Paths: []string{"/admin*"}, Action: "deny"}}}, `{}`)
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
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []policy.RequestRule{
		{Hosts: []string{proxytest.API}, Methods: []string{"DELETE"}, Action: "deny"},
		{Hosts: []string{proxytest.API}, Methods: []string{"GET"}, Paths: []string{"/ws"}, Action: "deny"},
		{Hosts: []string{proxytest.API}, Methods: []string{"CONNECT"}, Action: "allow"},
		{Hosts: []string{proxytest.API}, Methods: []string{"PUT"}, Action: "allow"},
		{Hosts: []string{proxytest.API}, Paths: []string{"/put"}, Action: "deny"},
	}}, `{}`)
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	for request, want := range map[string]int{
		"DELETE /": 403, "delete /": 403, "Delete /": 403, "DELETED /": 200, "PUT /put": 200, "put /put": 403, "GET /ws": 403, "GET /wss": 200,
	} {
		if res := proxytest.Ask(t, c, r, request+" HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET"); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", request, res.StatusCode, want)
		} else {
			proxytest.ReadAll(t, res.Body)
		}
	}
	h2 := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	for path, want := range map[string]string{"/ws": "403", "/other": "200"} {
		got := h2.ask(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path, "sec-websocket-version", "13")
		if got != want { // the upstream is no WebSocket server: it answers a GET
			t.Errorf("CONNECT %s: %s, want %s", path, got, want)
		}
	}
	if got, _ := up.Take(); got == nil || got.RequestURI == "/ws" {
		t.Errorf("the upstream received %+v", got)
	}
}
