package http2_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestAttackLoginOverHTTP2: a login does not reach the server over a shared connection, even after the server has offered it. A
// client that tries is sent to HTTP/1.1.
//
// The HTTP/1.1 server of this test offers no login, as that would lead the client to HTTP/1.1: see [TestLoginLeadsToHTTP1].
func TestAttackLoginOverHTTP2(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{true, false} {
		t.Run(fmt.Sprint("server with HTTP/2: ", h2), func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll)
			var logins atomic.Int32
			_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.Header.Get("Authorization"), "N") {
					logins.Add(1)
				}
				if h2 {
					w.Header().Set("WWW-Authenticate", "NTLM")
				}
				w.WriteHeader(http.StatusUnauthorized)
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			client := l.HTTPClient(port, true)
			url := "https://" + proxytest.HostPort(port) + "/"
			for range 3 {
				if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != http.StatusUnauthorized {
					t.Errorf("without a login: %d", res.StatusCode)
				}
			}
			for _, login := range []string{"NTLM TlRMTVNTUAAB", "Negotiate YII="} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", login)
				res, err := client.Do(req)
				if err == nil {
					_ = res.Body.Close()
				}
				if err == nil || !strings.Contains(err.Error(), "HTTP_1_1_REQUIRED") {
					t.Errorf("%s: %v", login, err)
				}
			}
			if n := logins.Load(); n != 0 {
				t.Errorf("%d logins have reached the server", n)
			}
		})
	}
}

// TestLoginLeadsToHTTP1: an HTTP/2 client that is offered a login by an HTTP/1.1 server makes another connection for that, and so
// does every later client of the box. A client that speaks only HTTP/2 is served as before.
func TestLoginLeadsToHTTP1(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", "NTLM")
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	url := "https://" + proxytest.HostPort(port) + "/"
	ask := func(client *http.Client, login string) (version, status int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", login)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.ProtoMajor, res.StatusCode
	}
	both := func() *http.Client {
		tr := &http.Transport{
			ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: l.BoxCA.Pool()},
			DialContext: func(context.Context, string, string) (net.Conn, error) { return l.DialPair("", port, false), nil },
		}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	client := both()
	for _, step := range []struct {
		login           string
		version, status int
	}{{"", 2, 401}, {"NTLM TlRMTVNTUAAB", 1, 200}, {"NTLM TlRMTVNTUAAD", 1, 200}} {
		if version, status := ask(client, step.login); version != step.version || status != step.status {
			t.Errorf("%q: HTTP/%d, %d", step.login, version, status)
		}
	}
	if version, status := ask(both(), ""); version != 1 || status != 401 {
		t.Errorf("another client: HTTP/%d, %d", version, status)
	}
	for range 2 {
		if version, status := ask(l.HTTPClient(port, true), ""); version != 2 || status != 401 {
			t.Errorf("a client of HTTP/2 alone: HTTP/%d, %d", version, status)
		}
	}
}

// TestAttackChallengedConnectionIsShared: a connection to a server of HTTP/1.1 that has offered a login serves one request.
func TestAttackChallengedConnectionIsShared(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	var conns, requests atomic.Int32
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		for {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			requests.Add(1)
			fmt.Fprint(c, "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n")
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	for range 4 { // each on a connection of its own: the client is led to HTTP/1.1, and goes on with HTTP/2
		if res, _ := proxytest.Get(t, l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("it is answered %d", res.StatusCode)
		}
	}
	if requests.Load() != 4 || conns.Load() != 4 {
		t.Errorf("%d requests on %d connections", requests.Load(), conns.Load())
	}
}
