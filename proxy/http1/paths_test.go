package http1_test

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

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
