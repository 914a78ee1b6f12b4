package http2_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// streaming starts an upstream, over HTTP/2 or HTTP/1.1, whose responses begin with a line, and end with another once the test
// signals end.
func streaming(l *proxytest.Rig, h2 bool) (port uint16, end chan struct{}) {
	end = make(chan struct{})
	_, port = l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "one")
		w.(http.Flusher).Flush()
		select {
		case <-end:
			fmt.Fprintln(w, "two")
		case <-r.Context().Done():
		}
	})
	return port, end
}

// open makes a request and reads the first line of its response.
func open(t *testing.T, client *http.Client, url string) *bufio.Reader {
	t.Helper()
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	r := bufio.NewReader(res.Body)
	if line, err := r.ReadString('\n'); line != "one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return r
}

// TestRecheckCutsTheStreamsThatAreDenied: of two requests on one connection, the one that a new request rule denies is reset, and
// the other goes on.
func TestRecheckCutsTheStreamsThatAreDenied(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{true, false} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		port, end := streaming(l, h2)
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		client, url := l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)
		denied, kept := open(t, client, url+"/denied"), open(t, client, url+"/kept")
		l.Policy(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{
			{Hosts: []string{proxytest.HostPort(port)}, Paths: []string{"/denied"}, Action: "deny"},
		}}, proxytest.Intercepted(port))
		l.Proxy.Recheck(l.Box.ID)
		if _, err := denied.ReadByte(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("h2 %v: the stream went on, or ended as if whole: %v", h2, err)
		}
		close(end)
		if rest := proxytest.ReadAll(t, kept); rest != "two\n" {
			t.Errorf("h2 %v: the stream that is allowed: %q", h2, rest)
		}
		if e := l.WantReason(name.ReasonPolicyChanged); e.Path != "/denied" || e.Verdict != policy.Deny {
			t.Errorf("h2 %v: %+v", h2, e)
		}
		l.Want("the other", func(e audit.Event) bool {
			return e.Path == "/kept" && e.Verdict == policy.Allow && e.Phase != audit.PhaseOpen && e.BytesIn == int64(len("one\ntwo\n"))
		})
	}
}

// TestRevokedSecretCutsTheConnection that has a request in progress which was sent with it. One that was sent with another goes on.
func TestRevokedSecretCutsTheConnection(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) {
		c.Secrets = proxytest.Sources{"a": proxytest.Fixed("value-a"), "b": proxytest.Fixed("value-b")}
	})
	port, end := streaming(l, true)
	rule := func(secret string) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "`+secret+`"}}}}`)
	}
	url := "https://" + proxytest.HostPort(port) + "/"
	rule("a")
	revoked := open(t, l.HTTPClient(port, true), url)
	rule("b")
	kept := open(t, l.HTTPClient(port, true), url)
	l.Proxy.Revoke("a")
	if _, err := revoked.ReadByte(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream went on, or ended as if whole: %v", err)
	}
	close(end)
	if rest := proxytest.ReadAll(t, kept); rest != "two\n" {
		t.Errorf("the stream with another secret: %q", rest)
	}
	l.WantReason(name.ReasonSecretUnavailable)
}
