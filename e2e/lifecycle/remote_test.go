package lifecycle

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// remoteClient connects to the listener for boxes elsewhere.
type remoteClient struct {
	*upgrading
	roots      *x509.CertPool
	box, token string
}

// dial connects from the gateway's network namespace, without TLS.
func (c *remoteClient) dial() (conn net.Conn, err error) {
	err = errors.Join(err, c.Net.Gateway().Do(func() (err error) {
		conn, err = net.Dial("tcp", harness.RemoteAt)
		return err
	}))
	return conn, err
}

// rotate gives the box a new token.
func (c *remoteClient) rotate() {
	c.T.Helper()
	var made struct{ Password string }
	if err := c.Client.Do(c.T.Context(), "POST", api.BoxPath(c.box, "token"), map[string]any{"expires_in": 3600}, &made); err != nil {
		c.T.Fatal(err)
	}
	c.token = made.Password
}

// tunnel opens a tunnel to an address by CONNECT.
func (c *remoteClient) tunnel(to string) net.Conn {
	c.T.Helper()
	conn, err := c.dial()
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	secured := tls.Client(conn, &tls.Config{ServerName: harness.RemoteName, RootCAs: c.roots})
	credentials := base64.StdEncoding.EncodeToString([]byte(c.box + ":" + c.token))
	_, _ = fmt.Fprintf(secured, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %s\r\n\r\n", to, credentials)
	got, err := http.ReadResponse(bufio.NewReader(secured), &http.Request{Method: http.MethodConnect})
	if err != nil || got.StatusCode != http.StatusOK {
		c.T.Fatalf("CONNECT %s: %v, %v", to, got, err)
	}
	return secured
}

// echoes reports whether a tunnel to a server that echoes still carries data.
func echoes(c net.Conn) bool {
	_, _ = io.WriteString(c, "echo")
	_, err := io.ReadFull(c, make([]byte, len("echo")))
	return err == nil
}

// isCounted sends traffic through a tunnel of the process that drains, and waits until the process that serves has counted it.
func (c *remoteClient) isCounted(tunnel net.Conn) {
	c.T.Helper()
	const size = 256 << 10
	used := func() (in, out int) {
		var view struct {
			Usage struct {
				In  int `json:"bytes_in"`
				Out int `json:"bytes_out"`
			}
		}
		if err := c.Client.Get(c.T.Context(), "/v2/box/"+c.box, &view); err != nil {
			c.T.Fatal(err)
		}
		return view.Usage.In, view.Usage.Out
	}
	inBefore, outBefore := used()
	go func() { _, _ = tunnel.Write(make([]byte, size)) }()
	if _, err := io.ReadFull(tunnel, make([]byte, size)); err != nil {
		c.T.Fatal(err)
	}
	c.Until("the traffic of the process that drains is counted", func() bool {
		in, out := used()
		if in-inBefore > 2*size || out-outBefore > 2*size {
			c.T.Fatalf("counted twice: %d and %d bytes", in-inBefore, out-outBefore)
		}
		return in-inBefore >= size && out-outBefore >= size
	})
}

// TestReloadRemovesTheRemoteListener: after a reload without remote.listen no client connects, open tunnels drain, and the revocation of
// the token cuts them. Their traffic is counted by the process that serves. The box keeps its place, and a reload that adds the listener serves it again.
func TestReloadRemovesTheRemoteListener(t *testing.T) {
	t.Parallel()
	listener, ca := harness.Remote(t)
	own, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	u := newUpgrading(t, func(c *config.Config) { c.Remote = listener })
	u.StartIfStopped()
	c := &remoteClient{upgrading: u, roots: x509.NewCertPool()}
	c.roots.AppendCertsFromPEM(own)
	if err := u.Net.AddHost("db.example.com", "203.0.113.99"); err != nil {
		t.Fatal(err)
	}
	ln := u.ListenBeside("203.0.113.99:5432")
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	const to = "db.example.com:5432"
	var made struct{ ID string }
	body := map[string]any{"remote": true, "network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{to}}}
	if err := u.Client.Do(t.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
		t.Fatal(err)
	}
	c.box = made.ID
	c.rotate()
	kept, cut := c.tunnel(to), c.tunnel(to)
	if !echoes(kept) || !echoes(cut) {
		t.Fatal("a tunnel carries nothing")
	}

	u.reconfigure(func(c *config.Config) { c.Remote = config.Remote{} })
	u.mustReplace("reload")
	if conn, err := c.dial(); err == nil {
		_ = conn.SetDeadline(time.Now().Add(harness.Patience))
		if err := tls.Client(conn, &tls.Config{ServerName: harness.RemoteName, RootCAs: c.roots}).Handshake(); err == nil {
			t.Error("a client connects after the reload that removed the listener")
		}
	}
	if !echoes(kept) {
		t.Error("an open tunnel does not drain")
	}
	c.isCounted(kept)
	if err := u.Client.Do(t.Context(), "DELETE", api.BoxPath(c.box, "token"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if echoes(kept) || echoes(cut) {
		t.Error("a tunnel outlives its token in the process that drains")
	}

	u.reconfigure(func(c *config.Config) { c.Remote = listener })
	u.mustReplace("reload")
	c.rotate()
	if !echoes(c.tunnel(to)) {
		t.Error("the box is not served after the reload that added the listener")
	}
}
