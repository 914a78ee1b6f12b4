package http1_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// narrowServer is a server of HTTP/1.1 over TLS of which the kernel takes only a few KiB that it has not read.
func narrowServer(r *proxytest.Rig, handle func(net.Conn, *bufio.Reader)) (port uint16) {
	r.T.Helper()
	narrow := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536) // by which the sender's buffer is sized
			}
		})
		return err
	}}
	ln, err := narrow.Listen(r.T.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { ln.Close() })
	config := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: r.Upstream.ForHello}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				secure := tls.Server(c, config)
				handle(secure, bufio.NewReader(secure))
			}()
		}
	}()
	return proxytest.PortOf(r.T, ln)
}

// TestEarlyAnswerToAChangedBody: a server that refuses a body which the gateway has read, and reads nothing of it, has its
// answer passed on; and one that reads it slowly gets all of it.
func TestEarlyAnswerToAChangedBody(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		for how, body := range map[string]string{"changed": proxytest.TokenFor("OTHER"), "as it was": "x", "too large to be changed": strings.Repeat("x", 1<<20)} {
			t.Run(map[bool]string{false: "h1 ", true: "h2 "}[h2]+how, func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
				sent := `["` + strings.Repeat("y", 1<<20-100) + body + `"]`
				ended := make(chan struct{})
				t.Cleanup(func() { close(ended) })
				port := narrowServer(l, func(c net.Conn, r *bufio.Reader) {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					if req.URL.Path == "/refused" {
						_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
						<-ended
						return
					}
					got, err := io.ReadAll(req.Body)
					if want := strings.Replace(sent, proxytest.TokenFor("OTHER"), "from-source", 1); err != nil || string(got) != want {
						t.Errorf("the server received %d bytes, not %d: %v", len(got), len(want), err)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				})
				l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, ", "+proxytest.Everywhere))
				for path, want := range map[string]int{"/refused": 413, "/taken": 200} {
					for _, content := range []func() io.Reader{func() io.Reader { return strings.NewReader(sent) }, func() io.Reader { return proxytest.Unsized(sent) }} {
						var status int
						var text string
						for range 3 { // under load such a narrow connection is reset now and then
							if status, text = proxytest.Send(t, l.HTTPClientLater(port, h2), "POST", "https://"+proxytest.HostPort(port)+path, http.Header{"Content-Type": {"application/json"}}, content()); status != 502 {
								break
							}
						}
						if status != want {
							t.Errorf("%s: %d %s", path, status, text)
						}
					}
				}
			})
		}
	}
}
