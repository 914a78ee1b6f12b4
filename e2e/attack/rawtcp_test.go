package attack

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// sayBack runs a service on a port of a box that sends its name and then echoes its input, until it receives quit.
func sayBack(w *harness.World, box, name string) {
	w.T.Helper()
	var ln net.Listener
	if err := w.Intrude(box).InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", "127.0.0.1:5432")
		return err
	}); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, name+"\n")
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if line == "quit\n" {
						return
					}
					_, _ = io.WriteString(c, line)
					if err != nil {
						return
					}
				}
			}()
		}
	}()
}

// reach opens a TLS connection to the gateway as a visitor with the given SNI and protocols.
func (v *visited) reach(sni string, protocols ...string) (*tls.Conn, error) {
	v.T.Helper()
	tcp, err := v.Net.Gateway().DialContext(v.T.Context(), "tcp", "127.0.0.1:443")
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { tcp.Close() })
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	c := tls.Client(tcp, &tls.Config{ServerName: sni, InsecureSkipVerify: sni == "", RootCAs: v.roots, NextProtos: protocols})
	return c, c.HandshakeContext(v.T.Context())
}

// rawURL creates a public URL of raw TCP for a service in a new box.
func rawURL(w *harness.World, name string) *visited {
	w.T.Helper()
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	sayBack(w, box, name)
	v := visitURL(w, box, map[string]any{"port": 5432, "protocol": "tcp"})
	u, err := url.Parse(v.URL)
	if err != nil || u.Scheme != "tls" || u.Port() != "443" {
		w.T.Fatalf("%s, %v", v.URL, err)
	}
	v.host = u.Hostname()
	return v
}

// TestAttackRawTCPToAnotherBox: the name in the handshake selects the box of a connection, and the data in it cannot.
// Without a name, or with one of no URL, no box is reached, also from a browser. HTTP requests reach no service.
func TestAttackRawTCPToAnotherBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	one, two := rawURL(w, "one"), rawURL(w, "two")
	for v, want := range map[*visited]string{one: "one\n", two: "two\n"} {
		c, err := v.reach(v.host, "postgresql")
		if err != nil {
			t.Fatal(err)
		}
		if p := c.ConnectionState().NegotiatedProtocol; p != "postgresql" {
			t.Errorf("agreed on %q", p)
		}
		asked := "GET / HTTP/1.1\r\nHost: " + two.host + "\r\n\r\n"
		_, _ = io.WriteString(c, asked)
		_ = c.CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != want+asked {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		e := w.Event(v.box, func(e audit.Event) bool { return e.Stage == policy.StageURL && e.BytesIn > 0 })
		if e.Verdict != policy.Allow || e.BytesIn != int64(len(asked)) || e.BytesOut != int64(len(want)+len(asked)) || e.Name != v.host {
			t.Errorf("%+v", e)
		}
	}
	for sni, protocols := range map[string][]string{
		"":                               {"postgresql"},
		"0123456789abcdef-5432" + suffix: {"postgresql"},
		one.host:                         {"h2", "http/1.1"},
	} {
		c, err := one.reach(sni, protocols...)
		if err == nil {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+one.host+"\r\n\r\n")
			var got []byte
			got, err = io.ReadAll(c)
			if strings.HasPrefix(string(got), "one") {
				t.Errorf("%q %v: reached", sni, protocols)
			}
		}
		t.Logf("%q %v: %v", sni, protocols, err)
	}
}

// suffix is the domain of the public URLs.
const suffix = ".preview.localhost"

// TestAttackRawTCPOutlivesItsURL: deleting the URL, or its box, ends an idle connection.
func TestAttackRawTCPOutlivesItsURL(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for name, revoke := range map[string]func(*visited) error{
		"the URL": func(v *visited) error {
			return w.Client.Do(t.Context(), "DELETE", api.BoxPath(v.box, "preview/5432"), nil, nil)
		},
		"the box": func(v *visited) error { return w.Client.Do(t.Context(), "DELETE", api.BoxPath(v.box), nil, nil) },
		"made anew": func(v *visited) error {
			return w.Client.Do(t.Context(), "POST", api.BoxPath(v.box, "preview"), map[string]any{"port": 5432, "bearer_token": true}, nil)
		},
	} {
		v := rawURL(w, name)
		c, err := v.reach(v.host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(name)+1)); err != nil {
			t.Fatal(err)
		}
		if err := revoke(v); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

// TestAttackRawTCPWithoutCredential: a URL that requires a credential cannot use raw TCP, which cannot carry one.
func TestAttackRawTCPWithoutCredential(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	for pointer, with := range map[string]map[string]any{
		"/bearer_token": {"port": 5432, "protocol": "tcp", "bearer_token": true},
		"/basic_auth":   {"port": 5432, "protocol": "tcp", "basic_auth": true},
		"/protocol":     {"port": 5432, "protocol": "udp"},
	} {
		var refused *api.ResponseError
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), with, nil)
		if !errors.As(err, &refused) || refused.Status != 422 || refused.Pointer != pointer {
			t.Errorf("%v: %v", with, err)
		}
	}
	strict := harness.NewWorld(t, func(c *config.Config) { c.Ingress.RequireAuth = true })
	box = strict.Create(map[string]any{})
	var refused *api.ResponseError
	err := strict.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 5432, "protocol": "tcp"}, nil)
	if !errors.As(err, &refused) || refused.Status != 403 {
		t.Errorf("where authentication is required: %v", err)
	}
}

// TestOpenSSLReachesRawTCP connects with openssl s_client.
func TestOpenSSLReachesRawTCP(t *testing.T) {
	t.Parallel()
	v := rawURL(harness.Shared(t), "hello")
	var pem []byte
	if err := v.Client.Get(t.Context(), "/v2/ca", &pem); err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(roots, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "openssl", "s_client", "-quiet", "-verify_return_error", "-CAfile", roots, "-connect", "127.0.0.1:443", "-servername", v.host)
	cmd.Stdin = strings.NewReader("and back\nquit\n")
	var out bytes.Buffer
	cmd.Stdout = &out
	err := v.Net.Gateway().Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || out.String() != "hello\nand back\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
