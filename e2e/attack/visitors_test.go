package attack

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// crowd is a group of visitors on the internet who open one public URL from one address.
type crowd struct {
	*visited
	gateway string
	mu      sync.Mutex
	conns   []net.Conn
}

// connect opens n TLS connections, several at a time. Connections that the gateway refuses are skipped.
func (c *crowd) connect(n int, alpn string, begin func(i int, s *tls.Conn)) {
	var group sync.WaitGroup
	for worker := range 20 {
		group.Go(func() {
			for i := worker; i < n; i += 20 {
				tcp, err := c.Net.Internet().DialContext(c.T.Context(), "tcp", c.gateway)
				if err != nil {
					continue
				}
				c.mu.Lock()
				c.conns = append(c.conns, tcp)
				c.mu.Unlock()
				_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
				s := tls.Client(tcp, &tls.Config{ServerName: c.host, RootCAs: c.roots, NextProtos: []string{alpn}})
				if s.Handshake() == nil {
					begin(i, s)
				}
			}
		})
	}
	group.Wait()
}

// ended waits until the gateway has ended every connection, and returns the number that ended only by the test's
// timeout.
func (c *crowd) ended() (left int) {
	patience := time.Now().Add(harness.Patience)
	for _, conn := range c.conns {
		_ = conn.SetDeadline(patience) // on a busy machine its earlier deadline may have passed, although it has ended
		_, err := io.Copy(io.Discard, conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			left++
		}
		_ = conn.Close()
	}
	return left
}

// streams opens streams without bodies on a connection and does not read.
func (c *crowd) streams(s *tls.Conn, n int, method string) {
	_, _ = io.WriteString(s, http2.ClientPreface) // errors are seen at the end of the connection
	frames := http2.NewFramer(s, s)
	_ = frames.WriteSettings()
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, f := range harness.Head(c.host, harness.Field{":method", method}, harness.Field{":path", "/silent"}) {
			_ = fields.WriteField(f.HPACK())
		}
		if frames.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: method == "GET", EndHeaders: true}) != nil {
			return
		}
	}
}

// takenDescriptors is the gateway's limit of open files, and takenVisitors how many visitors each of its listeners may have then
// (see share.Descriptors).
var (
	takenDescriptors = nightly.Size(5_000, 20_000)
	takenVisitors    = takenDescriptors / 16
)

// TestAttackVisitorsTakeEverything: visitors of one public URL use the most expensive resources of the gateway: streams
// that its application never answers, bodies that never arrive, unread answers, idle connections. Visitors of another
// URL, the admin API and requests of boxes continue, and no resource is held beyond its deadline.
func TestAttackVisitorsTakeEverything(t *testing.T) {
	t.Parallel()
	post := "POST /swallow HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\n%s\r\n"
	for name, attack := range map[string]func(c *crowd){
		"streams that are never answered": func(c *crowd) {
			c.connect(takenVisitors/15, "h2", func(_ int, s *tls.Conn) { c.streams(s, 249, "GET") })
		},
		"uploads that do not begin": func(c *crowd) {
			c.connect(takenVisitors/15, "h2", func(_ int, s *tls.Conn) { c.streams(s, 249, "POST") })
		},
		"bodies that never come, without a credential": func(c *crowd) {
			c.connect(takenVisitors, "http/1.1", func(_ int, s *tls.Conn) { _, _ = fmt.Fprintf(s, post, c.host, "") })
		},
		"bodies that never come, with the credential": func(c *crowd) {
			c.connect(takenVisitors, "http/1.1", func(_ int, s *tls.Conn) { _, _ = fmt.Fprintf(s, post, c.host, "Authorization: Bearer "+c.Token+"\r\n") })
		},
		"bodies that never come, for no URL": func(c *crowd) {
			c.connect(takenVisitors, "http/1.1", func(_ int, s *tls.Conn) { _, _ = fmt.Fprintf(s, post, "nobody-1.preview.localhost", "") })
		},
		"readers who do not read": func(c *crowd) {
			c.connect(takenVisitors*4/5, "http/1.1", func(_ int, s *tls.Conn) {
				_, _ = fmt.Fprintf(s, "GET /large HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", c.host, c.Token)
			})
		},
		"idle connections": func(c *crowd) {
			c.connect(takenVisitors*4/5, "h2", func(_ int, s *tls.Conn) { c.streams(s, 0, "") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crowdedOut(t, strings.Contains(name, "credential"), attack)
		})
	}
}

// large is a shared response body that exceeds the buffers of any connection.
var large = make([]byte, 64<<20)

// crowdedOut runs one attack against a new gateway.
func crowdedOut(t *testing.T, secured bool, attack func(*crowd)) {
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		l := &c.Ingress.Limits
		l.IdleTimeout, l.BodyTimeout, l.ResponseTimeout = 10*time.Second, 10*time.Second, 10*time.Second
	}})
	program := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", takenDescriptors, w.Self)
	w.Self = filepath.Join(w.Dir, "limited")
	if err := os.WriteFile(w.Self, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := bystander(w)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			<-r.Context().Done()
		case "/swallow":
			_, _ = io.Copy(io.Discard, r.Body)
		case "/large":
			_, _ = w.Write(large)
		}
	})
	serve := func(with map[string]any) *visited {
		in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
		var ln net.Listener
		if err := in.InNetNS(func() (err error) { ln, err = net.Listen("tcp", ":8000"); return err }); err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: app}
		go func() { _ = server.Serve(ln) }() // ends with Close
		t.Cleanup(func() { _ = server.Close() })
		return visitURL(w, in.Box, with)
	}
	target, other := serve(map[string]any{"port": 8000, "bearer_token": secured}), serve(map[string]any{"port": 8000})
	at, _ := w.Net.GatewayAddrs()
	c := &crowd{visited: target, gateway: net.JoinHostPort(at.String(), "443")}
	undisturbed := func() {
		t.Helper()
		if status, _ := other.ask("GET", "/small"); status != http.StatusOK {
			t.Errorf("another visitor got %d", status)
		}
		if err := w.Client.Get(t.Context(), api.BoxPath(other.box), new(map[string]any)); err != nil {
			t.Errorf("the admin API: %v", err)
		}
	}
	attacked := make(chan struct{})
	go func() {
		defer close(attacked)
		attack(c)
	}()
	for done := false; !done; {
		undisturbed()
		select {
		case <-attacked:
			done = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	undisturbed()
	if left := c.ended(); left > 0 {
		t.Errorf("the gateway still holds %d of %d connections", left, len(c.conns))
	}
	undisturbed()
	if n, slowest := stop(); n < 4 || slowest > heldUp {
		t.Errorf("a box made %d requests, the slowest took %v", n, slowest)
	}
	w.NoInternalErrors()
}
