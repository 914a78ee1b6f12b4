package exchange_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// Tests of the values that rules name by their source.

// TestSecretSources: a header of a source is sent with its value and affixes; one that cannot be had refuses the request.
func TestSecretSources(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"Authorization": {"secret": "s", "prefix": "Bearer ", "suffix": "!"}, "X-Plain": "plain"}}}`)
		if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"Authorization": {"mine"}}); res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
		if got, _ := up.Take(); got.Header.Get("Authorization") != "Bearer from-source!" || got.Header.Get("X-Plain") != "plain" || len(got.Header["Authorization"]) != 1 {
			t.Errorf("the upstream received %v", got.Header)
		}
		n := 1
		for label, rule := range map[string]string{
			"failing":                  `"headers": {"X-Plain": "plain", "X-Key": {"secret": "broken"}}`,
			"unknown":                  `"headers": {"X-Key": {"secret": "none"}}`,
			"empty":                    `"headers": {"X-Key": {"secret": "empty"}}`,
			"unfit for a header":       `"headers": {"X-Key": {"secret": "bad"}}`,
			"too long with its prefix": `"headers": {"X-Key": {"secret": "s", "prefix": "` + strings.Repeat("p", 4096) + `", "suffix": "` + strings.Repeat("p", 4090) + `"}}`,
			"failing placeholder":      `"placeholders": {"KEY": {"secret": "broken"}}`,
			"unfit for a user":         `"placeholders": {"LOGIN": {"secret": "colon"}, "KEY": "k"}`,
		} {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {`+rule+`}}`)
			header := http.Header{}
			if strings.Contains(rule, "placeholders") {
				header.Set("X-Token", proxytest.TokenFor("KEY"))
			}
			if strings.Contains(rule, "LOGIN") {
				header.Set("Authorization", proxytest.Basic(proxytest.TokenFor("LOGIN"), "p"))
			}
			res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", header)
			if res.StatusCode != 502 || !strings.Contains(text, `"secret_unavailable"`) || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %d %s", label, res.StatusCode, text)
			}
			if got, _ := up.Take(); got != nil {
				t.Errorf("%s: the upstream received %v", label, got.Header)
			}
			if n++; true {
				e := l.Events.Wait(t, n)[n-1]
				if e.Verdict != policy.Deny || e.Reason != name.ReasonSecretUnavailable || e.Error == "" || e.Status != 502 || strings.Contains(e.Error, "evil") {
					t.Errorf("%s: event %+v", label, e)
				}
			}
		}
	})
}

// TestEventsNameTheSecretsUsed: the event of a request names the secrets of the configuration that it was sent with, those of
// placeholders only if the request has them, and none if it was refused before it was sent. It contains no value.
func TestEventsNameTheSecretsUsed(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		n := 0
		event := func(rules string, header http.Header) audit.Event {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {`+rules+`}}`)
			proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", header)
			n++
			return l.Events.Wait(t, n)[n-1]
		}
		placeholder := http.Header{"X-Token": {proxytest.TokenFor("KEY")}}
		for _, c := range []struct {
			rules  string
			header http.Header
			want   []string
		}{
			{`"headers": {"Authorization": {"secret": "s", "prefix": "Bearer "}}`, nil, []string{"s"}},
			{`"headers": {"Authorization": "literal"}`, nil, nil},
			{`"placeholders": {"KEY": {"secret": "s"}}`, placeholder, []string{"s"}},
			{`"placeholders": {"KEY": {"secret": "s"}}`, nil, nil},
			{`"headers": {"X-Key": {"secret": "broken"}}`, nil, nil},
		} {
			e := event(c.rules, c.header)
			if line, err := json.Marshal(e); !slices.Equal(e.Secrets, c.want) || err != nil || strings.Contains(string(line), "from-source") {
				t.Errorf("%s: %s, want the secrets %q", c.rules, line, c.want)
			}
		}
		up.Take()
	})
}

// TestNoSecretsAtAll: a proxy without secrets fails every rule that names one, and no other.
func TestNoSecretsAtAll(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	client := l.HTTPClient(port, false)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "s"}}}}`)
	if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 502 {
		t.Errorf("%d", res.StatusCode)
	}
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": "literal"}}}`)
	if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}
}

// TestSecretIsAskedForEachRequest: the value may change between two requests of one connection.
func TestSecretIsAskedForEachRequest(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		var asked atomic.Int32
		l.With(func(c *proxy.Config) {
			c.Secrets = proxytest.Sources{"s": func(context.Context) (string, error) { return fmt.Sprint("value ", asked.Add(1)), nil }}
		})
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "s"}}}}`)
		for i := range 3 {
			proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
			if got, _ := up.Take(); got == nil || got.Header.Get("X-Key") != fmt.Sprint("value ", i+1) {
				t.Errorf("request %d: %v", i, got)
			}
		}
	})
}

// TestRevokeAsksOnlyWhoHoldsTheSecret: a stream that was sent with the secret is cut; another is not even routed again, which
// shows in that a policy that came meanwhile does not cut it.
func TestRevokeAsksOnlyWhoHoldsTheSecret(t *testing.T) {
	t.Parallel()
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			more := make(chan struct{})
			stream := func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "one\n")
				w.(http.Flusher).Flush()
				select {
				case <-more:
					fmt.Fprint(w, "two\n")
				case <-r.Context().Done():
				}
			}
			_, held := l.HTTPSServer(h2, stream)
			_, other := l.HTTPSServer(h2, stream)
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(held)+`": {"headers": {"X-Key": {"secret": "s"}}}, "`+proxytest.HostPort(other)+`": {"headers": {"X-Key": "literal"}}}`)
			open := func(port uint16) *bufio.Reader {
				res, err := l.HTTPClient(port, h2).Get("https://" + proxytest.HostPort(port) + "/")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = res.Body.Close() })
				r := bufio.NewReader(res.Body)
				if _, err := r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				return r
			}
			a, b := open(held), open(other)
			l.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil) // and nothing is rechecked
			l.Proxy.Revoke("s")
			if text, err := a.ReadString('\n'); err == nil {
				t.Errorf("the stream with the secret goes on: %q", text)
			}
			close(more)
			if text, err := b.ReadString('\n'); err != nil || text != "two\n" {
				t.Errorf("the other stream: %q, %v", text, err)
			}
		})
	}
}
