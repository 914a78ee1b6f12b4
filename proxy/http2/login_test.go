package http2_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestAttackLoginOverHTTP2: a connection that many share does not log in; a client that tries is sent to HTTP/1.1, and what a
// server says of such logins gets no connection shared either.
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
				w.Header().Set("WWW-Authenticate", "NTLM")
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
	client := l.HTTPClient(port, true)
	for range 4 {
		if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("it is answered %d", res.StatusCode)
		}
	}
	if requests.Load() != 4 || conns.Load() != 4 {
		t.Errorf("%d requests on %d connections", requests.Load(), conns.Load())
	}
}
