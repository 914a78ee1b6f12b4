package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// upgrading answers a request with a 101, and then sends back all data, prefixed with the path.
func upgrading(c net.Conn) {
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	_, _ = io.WriteString(c, req.URL.Path+"\n")
	_, _ = io.Copy(c, r)
}

// echoes sends a line on a connection, reads until its echo, and returns the data before it.
func echoes(r *bufio.Reader, c net.Conn) (before string, err error) {
	if _, err := io.WriteString(c, "echo\n"); err != nil {
		return "", err
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "echo\n" {
			return before, err
		}
		before += line
	}
}

// TestAttackBoxOpensPublicURLsByOtherProtocols: a box opens a public URL by a WebSocket, and one of raw TCP. When its
// policy no longer allows their names, both are cut and cannot be reopened.
func TestAttackBoxOpensPublicURLsByOtherProtocols(t *testing.T) {
	t.Parallel()
	in, _, _ := innerWorld(t, map[string]any{"mode": "allow-all"})
	served := in.Intrude(in.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	serveRaw(served, 8010, upgrading)
	serveRaw(served, 5432, func(c net.Conn) { _, _ = io.Copy(c, c) })
	socket, raw := visitURL(in.World, served.Box, map[string]any{"port": 8010}), visitURL(in.World, served.Box, map[string]any{"port": 5432, "protocol": "tcp"})
	if u, err := url.Parse(raw.URL); err == nil {
		raw.host = u.Hostname()
	}
	open := func(v *visited, head string) (net.Conn, *bufio.Reader, string, error) {
		c, err := in.connect(v, "ip4", 443)
		if err != nil {
			return nil, nil, "", err
		}
		r := bufio.NewReader(c)
		if _, err = io.WriteString(c, head); err == nil && head != "" {
			var res *http.Response
			if res, err = http.ReadResponse(r, nil); err == nil && res.StatusCode != http.StatusSwitchingProtocols {
				err = errors.New(res.Status)
			}
		}
		if err != nil {
			return nil, nil, "", err
		}
		before, err := echoes(r, c)
		return c, r, before, err
	}
	head := "GET /socket HTTP/1.1\r\nHost: " + socket.host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	for what, c := range map[string]struct {
		v          *visited
		head, said string
		port       uint16
	}{"a WebSocket": {socket, head, "/socket\n", 8010}, "raw TCP": {raw, "", "", 5432}} {
		in.SetPolicy(in.Box, map[string]any{"mode": "allow-all"})
		conn, r, said, err := open(c.v, c.head)
		if err != nil || said != c.said {
			t.Errorf("%s: %q, %v", what, said, err)
			continue
		}
		from, _, _ := net.SplitHostPort(conn.LocalAddr().String())
		in.SetPolicy(in.Box, map[string]any{"mode": "custom", "denied_domains": []string{c.v.host}})
		if _, err := echoes(r, conn); err == nil {
			t.Errorf("%s: it is not cut", what)
		}
		if _, _, _, err := open(c.v, c.head); err == nil {
			t.Errorf("%s: it is opened against the policy", what)
		}
		in.Event(served.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageURL && e.Port == c.port && e.Peer.String() == from && e.BytesIn > 0
		})
	}
}

// TestAttackBoxOpensNestedPublicURLs: where each box has its own domain, a box opens public URLs by these names only.
func TestAttackBoxOpensNestedPublicURLs(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.Domain, c.Ingress.Names = urlDomain, "nested" })
	served := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	serveRaw(served, 8000, showing(8000))
	v := visitURL(w, served.Box, map[string]any{"port": 8000})
	if v.host != "8000."+served.Box+"."+urlDomain {
		t.Fatalf("the host is %s", v.host)
	}
	in := inner{w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("*." + served.Box + "." + urlDomain)})), t}
	if status, seen := in.opens(v); status != 200 {
		t.Errorf("%d %s", status, seen)
	}
	for _, host := range []string{fmt.Sprintf("%s-8000.%s", served.Box, urlDomain), "x." + v.host, "8001." + served.Box + "." + urlDomain, served.Box + "." + urlDomain} {
		c, err := in.connectTo(v, in.sink(), host)
		if err != nil {
			continue
		}
		if status, seen := in.get(c, host); status == 200 {
			t.Errorf("%s: %d %s", host, status, seen)
		}
	}
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(served.Box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if c, err := in.connectTo(v, in.sink(), v.host); err == nil {
		if status, _ := in.get(c, v.host); status == 200 {
			t.Error("a deleted URL is opened")
		}
	}
}
