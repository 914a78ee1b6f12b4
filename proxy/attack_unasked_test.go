package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/proxy/proxytest"
)

// forged is an unsolicited response.
const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

// onceServer is a server whose first connection is answered by first. Further requests on it, and those on other
// connections, are answered with "true".
func onceServer(r *proxytest.Rig, secure bool, first func(net.Conn)) uint16 {
	var conns atomic.Int32
	handle := func(c net.Conn, in *bufio.Reader) {
		for n := conns.Add(1); ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if n == 1 {
				first(c)
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
		}
	}
	if !secure {
		return r.RawListen(nil, handle)
	}
	return r.RawListen(&tls.Config{GetCertificate: r.Upstream.ForHello, DynamicRecordSizingDisabled: true}, handle)
}

// delivered waits until the peer has acknowledged all data written to a connection.
func delivered(t testing.TB, c net.Conn) {
	proxytest.Await(t, "the acknowledgement", func() bool {
		left := -1
		control(t, c, func(fd int) (err error) {
			left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
			return err
		})
		return left == 0
	})
}

func control(t testing.TB, c net.Conn, f func(fd int) error) {
	t.Helper()
	tcp, _ := socket.TCP(c)
	raw, err := tcp.SyscallConn()
	if err == nil {
		if failed := raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
			err = failed
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestAttackBodyBehindAResponseWithout: a body that follows a response without one is not taken as the next response.
func TestAttackBodyBehindAResponseWithout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ method, response string }{
		"HEAD":   {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n"},
		"204":    {"GET", "HTTP/1.1 204 No Content\r\n\r\n"},
		"304":    {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 45\r\n\r\n"},
		"length": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", secure), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				read, sent := make(chan struct{}), make(chan struct{})
				port := onceServer(l, secure, func(s net.Conn) {
					_, _ = io.WriteString(s, c.response)
					<-read
					_, _ = io.WriteString(s, forged)
					delivered(t, s)
					close(sent)
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				conn := l.DialPair(proxytest.API, port, secure)
				in := bufio.NewReader(conn)
				host := " / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
				_ = proxytest.Ask(t, conn, in, c.method+host, c.method)
				close(read)
				<-sent
				if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, in, "GET"+host, "GET").Body); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// TestAttackResponseBehindAnother: data that arrives together with a response is not taken as the next one, whatever the
// sizes of the gateway's buffers.
func TestAttackResponseBehindAnother(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 4 << 10, 8 << 10} {
		for _, how := range []string{"plain", "one record", "another record"} {
			t.Run(fmt.Sprint(how, " ", size), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				port := onceServer(l, how != "plain", func(s net.Conn) {
					head := "HTTP/1.1 200 OK\r\nContent-Length: "
					body := size - len(head) - 8
					response := fmt.Sprintf("%s%4d\r\n\r\n%s", head, body, strings.Repeat("x", body))
					if how != "another record" {
						_, _ = io.WriteString(s, response+forged)
						return
					}
					control(t, s, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
					_, _ = io.WriteString(s, response)
					_, _ = io.WriteString(s, forged)
					control(t, s, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 0) })
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				conn := l.DialPair(proxytest.API, port, how != "plain")
				in := bufio.NewReader(conn)
				request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
				_ = proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body)
				if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// TestTimeoutOfTheServerIsNoAnswer: a client is slow to send a request, and the server times out in that time.
func TestTimeoutOfTheServerIsNoAnswer(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	begun, sent := make(chan struct{}), make(chan struct{})
	port := onceServer(l, false, func(s net.Conn) {
		_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-begun
		_, _ = io.WriteString(s, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
		delivered(t, s)
		close(sent)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	conn := l.DialPair(proxytest.API, port, false)
	in := bufio.NewReader(conn)
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	_ = proxytest.ReadAll(t, proxytest.Ask(t, conn, in, request, "GET").Body)
	_, _ = io.WriteString(conn, request[:1])
	l.Events.Wait(t, 1)
	since := time.Now()
	close(begun)
	<-sent
	proxytest.Await(t, "the time after which the connection is looked at", func() bool { return time.Since(since) > 300*time.Millisecond })
	res := proxytest.Ask(t, conn, in, request[1:], "GET")
	if got := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 || got != "true" {
		t.Errorf("%s %q", res.Status, got)
	}
}

// TestFailedRequestIsSentOnceMore: a request that failed on a kept connection is retried exactly once, although other kept
// connections would fail as well.
func TestFailedRequestIsSentOnceMore(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	const kept = 3
	var together sync.WaitGroup
	together.Add(kept)
	var conns, requests atomic.Int32
	port := l.RawServer(false, func(s net.Conn, in *bufio.Reader) {
		n := conns.Add(1)
		for first := true; ; first = false {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if requests.Add(1); !first {
				return // without a response
			}
			if n <= kept {
				together.Done()
				together.Wait()
			}
			_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	request := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	var all sync.WaitGroup
	for range kept {
		conn := l.DialPair(proxytest.API, port, false)
		all.Go(func() {
			_, _ = io.WriteString(conn, request)
			_, _ = http.ReadResponse(bufio.NewReader(conn), nil)
		})
	}
	all.Wait()
	proxytest.Await(t, "the connections kept", func() bool { return proxytest.IdleUpstreams(l) == kept })
	conn := l.DialPair(proxytest.API, port, false)
	if got := proxytest.ReadAll(t, proxytest.Ask(t, conn, bufio.NewReader(conn), request, "GET").Body); got != "true" {
		t.Errorf("%q", got)
	}
	if n := requests.Load(); n != kept+2 {
		t.Errorf("the server saw %d requests, want %d", n, kept+2)
	}
}
