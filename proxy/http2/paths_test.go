package http2_test

import (
	"bufio"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/proxy/proxytest"
)

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
		l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"*.example.com"}, Paths: []string{"/admin*"}, Action: "deny"}}}, `{}`)
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
	l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{
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
	for path, want := range map[string]string{"/ws": "403", "/other": "502"} {
		got := h2.ask(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path, "sec-websocket-version", "13")
		if got != want { // the upstream is no WebSocket server: it answers a GET, which the client would take for the success of its CONNECT
			t.Errorf("CONNECT %s: %s, want %s", path, got, want)
		}
	}
	if got, _ := up.Take(); got == nil || got.RequestURI == "/ws" {
		t.Errorf("the upstream received %+v", got)
	}
}
