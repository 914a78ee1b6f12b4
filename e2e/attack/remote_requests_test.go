package attack

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// remoteHost is the host that the requests of remote boxes name.
const remoteHost = "api.example.com"

// withAuth puts the credentials of a box behind the first line of a request, and its target into absolute form.
func withAuth(b remoteBox, request string) string {
	request = strings.NewReplacer("HOST", remoteHost, harness.OriginName, remoteHost).Replace(request)
	line, rest, _ := strings.Cut(request, "\n")
	return strings.Replace(line, " / ", " http://"+remoteHost+"/ ", 1) + "\n" + authOf(b.id, b.token) + rest
}

// Removing the credentials from the first request in absolute form does not make its parsing laxer than for a box of this host:
// none hides another, names another host than the one that is judged, or carries a Proxy field to the server.
func TestAttackRemoteRequests(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{
		"network_policy": harness.Custom(remoteHost),
		"attach_headers": map[string]any{remoteHost: map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	})
	for what, request := range malformed {
		if status, _ := w.ask(withAuth(b, request)); status == 200 {
			t.Errorf("%s: served", what)
		}
	}
	for what, body := range malformedBodies {
		head := strings.Replace(chunkedHead, " /chunked ", " http://"+remoteHost+"/chunked ", 1)
		if status, _ := w.ask(withAuth(b, head) + body); status == 200 {
			t.Errorf("%s: served", what)
		}
	}
	for _, request := range []string{
		"GET http://evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST/ HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
		"GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: y\r\n folded\r\n\r\n", "\tGET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	} {
		if status, _ := w.ask(withAuth(b, request)); status == 200 {
			t.Errorf("%q: served", request)
		}
	}
	auth := strings.TrimSpace(authOf(b.id, b.token))
	c := w.dial()
	in := bufio.NewReader(c)
	for range 2 {
		got, text := harness.Exchange(t, c, in, withAuth(b, "POST http://HOST/fields HTTP/1.1\r\nHost: HOST\r\nProxy-Secret: "+b.token+"\r\nConnection: Proxy-Authorization\r\n"+
			"Transfer-Encoding: chunked\r\nTrailer: Proxy-Authorization\r\n\r\n1\r\nx\r\n0\r\n"+auth+"\r\nproxy-secret: "+b.token+"\r\n\r\n"))
		if got.StatusCode != 200 {
			t.Fatalf("a request with Proxy fields: %s %s", got.Status, text)
		}
	}
	received := w.Net.Received(remoteHost, testnet.Path("/fields"))
	if len(received) != 2 {
		t.Errorf("%d requests", len(received))
	}
	for _, r := range received {
		for _, fields := range []map[string][]string{r.Header, r.Trailer} {
			for name := range fields {
				if strings.HasPrefix(strings.ToLower(name), "proxy-") {
					t.Errorf("the server got %v and %v", r.Header, r.Trailer)
				}
			}
		}
	}
	if got := w.Net.Received(remoteHost, testnet.Path("/smuggled")); len(got) != 0 {
		t.Errorf("%d smuggled requests", len(got))
	}
	w.NothingReached("evil.example.net")
}

// A remote box reaches no other box, and the end of a box ends its token, its tunnels and its requests, also when a new box gets its
// address.
func TestAttackRemoteBoxes(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	all := map[string]any{"mode": "allow-all"}
	b, other := w.attach(map[string]any{"network_policy": all}), w.attach(map[string]any{"network_policy": all})
	local := w.Create(map[string]any{"network_policy": all})
	addresses := func(id string) []string {
		t.Helper()
		var view struct{ IPv4, IPv6 string }
		if err := w.Client.Do(t.Context(), "GET", api.BoxPath(id), nil, &view); err != nil {
			t.Fatal(err)
		}
		return []string{view.IPv4, view.IPv6}
	}
	for _, at := range append(append(addresses(other.id), addresses(local)...), addresses(b.id)...) {
		to := net.JoinHostPort(at, "80")
		if status, _ := w.ask(connectTo(b, to)); status != 403 {
			t.Errorf("CONNECT %s: %d", to, status)
		}
	}
	tunnel, kept := w.tunnel(b, remoteHost+":443"), w.dial()
	in := bufio.NewReader(kept)
	if got, _ := harness.Exchange(t, kept, in, withAuth(b, "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n")); got.StatusCode != 200 {
		t.Fatalf("a request: %s", got.Status)
	}
	before := addresses(b.id)
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(b.id, "detach"), nil, nil); err != nil {
		t.Fatal(err)
	}
	next := w.attach(map[string]any{"network_policy": all})
	t.Logf("addresses %v, then %v", before, addresses(next.id))
	for what, c := range map[string]net.Conn{"a tunnel": tunnel, "a connection between requests": kept} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
			t.Errorf("%s of a box that is gone: %d, %v", what, n, err)
		}
	}
	for _, wrong := range []remoteBox{b, {next.id, b.token}} {
		if status, _ := w.ask(connectTo(wrong, remoteHost+":443")); status != 407 {
			t.Errorf("the token of a box that is gone: %d", status)
		}
	}
	if _, err := io.WriteString(w.tunnel(next, remoteHost+":443"), "x"); err != nil {
		t.Error(err)
	}
}
