package exchange_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
)

// agingTokens says when a token was asked for: early or late.
type agingTokens struct {
	asked chan struct{}
	late  atomic.Bool
}

func (a *agingTokens) Token(policy.BoxID, string, string) (name.Secret, error) {
	a.asked <- struct{}{}
	if a.late.Load() {
		return name.NewSecret("late"), nil
	}
	return name.NewSecret("early"), nil
}

// slow is a body that is there once the gateway has asked for a value, after which the value becomes another.
type slow struct {
	io.Reader
	asked  <-chan struct{}
	rotate func()
	once   sync.Once
}

func (s *slow) Read(p []byte) (int, error) {
	s.once.Do(func() {
		select {
		case <-s.asked:
		case <-time.After(time.Minute): // the test fails on what is sent
		}
		s.rotate()
	})
	return s.Reader.Read(p)
}

// post sends a body that is read slowly.
func (s *slow) post(t *testing.T, client *http.Client, url string, header http.Header, content string) {
	t.Helper()
	s.Reader = strings.NewReader(content)
	req, err := http.NewRequest("POST", url, s)
	if err != nil {
		t.Fatal(err)
	}
	req.Header, req.ContentLength = header, int64(len(content))
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 {
		t.Fatal(res.StatusCode, text)
	}
}

// TestClientCertificateRotatedDuringTheBody: a body that has to be read first may take long; the request is then sent with the
// client certificate of that time, and not on a connection that was made with the earlier one.
func TestClientCertificateRotatedDuringTheBody(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		texts := [2]string{proxytest.IdentityText(t, l.Upstream.Certificate(t, "first")), proxytest.IdentityText(t, l.Upstream.Certificate(t, "second"))}
		var now atomic.Int64
		asked := make(chan struct{}, 16)
		l.With(func(c *proxy.Config) {
			c.Secrets = proxytest.Sources{"identity": func(context.Context) (string, error) {
				asked <- struct{}{}
				return texts[now.Load()], nil
			}}
		})
		place := proxytest.HostPort(port)
		l.Rules(proxytest.AllowAll, `{"`+place+`": {"placeholders": {"KEY": "value"}, "places": ["header", "json"], "client_certificate": {"certificate": {"secret": "identity"}, "key": {"secret": "identity"}}}}`)
		from := func() string {
			got, _ := up.Take()
			if got == nil || len(got.TLS.PeerCertificates) == 0 {
				return ""
			}
			return got.TLS.PeerCertificates[0].DNSNames[0]
		}
		header := http.Header{"Content-Type": {"application/json"}}
		if status, text := proxytest.Send(t, client, "POST", "https://"+place+"/", header, nil); status != 200 || from() != "first" {
			t.Fatalf("before the rotation: %d %s", status, text)
		}
		for len(asked) > 0 {
			<-asked
		}
		body := &slow{asked: asked, rotate: func() { now.Store(1) }}
		body.post(t, client, "https://"+place+"/", header, `["text"]`)
		if who := from(); who != "second" {
			t.Errorf("after the rotation the request came from %q", who)
		}
	})
}

// TestTokenOfTheTimeAfterTheBody: the token for a proxy that a request is forwarded to is made when the request is sent, and not
// before its body is read, which may take longer than the token is valid.
func TestTokenOfTheTimeAfterTheBody(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		tokens := &agingTokens{asked: make(chan struct{}, 16)}
		l.With(func(c *proxy.Config) { c.Tokens = tokens })
		place := proxytest.HostPort(port)
		l.Rules(proxytest.AllowAll, `{"`+place+`": {"forward_url": "https://`+place+`/in"}, "elsewhere.test": {"placeholders": {"KEY": "value"}}}`)
		packed, err := scrub.Encoded([]string{"gzip"}, []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		body := &slow{asked: tokens.asked, rotate: func() { tokens.late.Store(true) }}
		body.post(t, client, "https://"+place+"/", http.Header{"Content-Encoding": {"gzip"}}, string(packed))
		got, _ := up.Take()
		for name, want := range map[string]string{"Vercel-Sandbox-Oidc-Token": "late", "Vercel-Forwarded-Path": "/"} {
			if values := got.Header.Values(name); len(values) != 1 || values[0] != want {
				t.Errorf("%s: %q, not %q alone", name, values, want)
			}
		}
	})
}
