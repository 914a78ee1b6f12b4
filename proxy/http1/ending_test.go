package http1_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/proxytest"
	"boxgate/relay"
)

// ask is a request of a client that sends no other.
const ask = "POST /ask HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\n\r\nhi"

// ends are the ways in which a client ends its side.
var ends = []struct {
	name        string
	secure      bool
	notify, fin bool
}{{"plain", false, false, true}, {"TLS", true, true, true}, {"TLS alone", true, true, false}}

// end ends the side of a client.
func end(t *testing.T, c net.Conn, notify, fin bool) {
	t.Helper()
	if notify {
		if err := c.(*tls.Conn).CloseWrite(); err != nil {
			t.Error(err)
		}
	}
	if tcp, ok := socket.TCP(c); ok && fin {
		if err := tcp.CloseWrite(); err != nil {
			t.Error(err)
		}
	}
}

// endingServer is a server that hands its connections to serve after each request.
func endingServer(t *testing.T, secure bool, serve func(c net.Conn, in *bufio.Reader)) (*proxytest.Rig, uint16) {
	t.Helper()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(secure, func(c net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			serve(c, in)
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	return l, port
}

// askAndEnd makes a request and ends the client's side.
func askAndEnd(t *testing.T, l *proxytest.Rig, port uint16, secure, notify, fin bool) net.Conn {
	t.Helper()
	c := l.DialPair(proxytest.API, port, secure)
	fmt.Fprintf(c, ask, proxytest.HostPort(port))
	end(t, c, notify, fin)
	return c
}

// TestServerHearsTheEndOfTheClient: a server that answers at the end of its input does so when the client has ended its side, which still
// reads.
func TestServerHearsTheEndOfTheClient(t *testing.T) {
	t.Parallel()
	for _, how := range ends {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			l, port := endingServer(t, how.secure, func(c net.Conn, in *bufio.Reader) {
				n, err := io.Copy(io.Discard, in)
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n%d %v", n, err)
			})
			c := askAndEnd(t, l, port, how.secure, how.notify, how.fin)
			if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), "\r\n\r\n0 <nil>") {
				t.Errorf("%q, %v", got, err)
			}
			if e := l.Events.Wait(t, 1)[0]; e.Verdict != policy.Allow || e.Status != http.StatusOK || e.Error != "" {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestEndOfAClientIsNotAnothers: a connection to a server which was told of the end of one client's requests carries no other client's.
func TestEndOfAClientIsNotAnothers(t *testing.T) {
	t.Parallel()
	for _, how := range ends {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			l, port := endingServer(t, how.secure, func(c net.Conn, in *bufio.Reader) {
				late := false
				once.Do(func() {
					late = true
					_, _ = io.Copy(io.Discard, in)
				})
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				if late {
					<-t.Context().Done() // it does not close the connection
				}
			})
			c := askAndEnd(t, l, port, how.secure, how.notify, how.fin)
			if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), "\r\n\r\nok") {
				t.Fatalf("%q, %v", got, err)
			}
			another := l.DialPair(proxytest.API, port, how.secure)
			if res := proxytest.Ask(t, another, bufio.NewReader(another), fmt.Sprintf(ask, proxytest.HostPort(port)), "POST"); res.StatusCode != http.StatusOK {
				t.Errorf("another client is answered %s", res.Status)
			}
		})
	}
}

// TestEndOfAClientComesAfterItsRequests: while a client has sent further requests, the server is not told that it has ended its side.
func TestEndOfAClientComesAfterItsRequests(t *testing.T) {
	t.Parallel()
	for _, how := range ends {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			l, port := endingServer(t, how.secure, func(c net.Conn, in *bufio.Reader) {
				_ = c.SetReadDeadline(time.Now().Add(1200 * time.Millisecond)) // the gateway looks within that time
				_, err := in.Peek(1)
				_ = c.SetReadDeadline(time.Time{})
				switch n := requests.Add(1); {
				case n < 3 && !errors.Is(err, os.ErrDeadlineExceeded):
					t.Errorf("behind request %d: %v", n, err)
				case n == 3:
					_, _ = io.Copy(io.Discard, in)
				}
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			})
			c := l.DialPair(proxytest.API, port, how.secure)
			_, _ = io.WriteString(c, strings.Repeat(fmt.Sprintf(ask, proxytest.HostPort(port)), 3))
			end(t, c, how.notify, how.fin)
			if got, err := io.ReadAll(c); err != nil || strings.Count(string(got), "\r\n\r\nok") != 3 {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestServerGivesUpAtTheEndOfTheClient: a server that closes the connection because the client has ended its side is not asked again, and
// the client is told nothing that the server has not said.
func TestServerGivesUpAtTheEndOfTheClient(t *testing.T) {
	t.Parallel()
	for _, how := range ends {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			l, port := endingServer(t, how.secure, func(c net.Conn, in *bufio.Reader) {
				if asked.Add(1) == 1 {
					fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") // so that its connection is kept
					return
				}
				_, _ = io.Copy(io.Discard, in)
				c.Close()
			})
			if res, _ := proxytest.Get(t, l.HTTPClient(port, false), url(how.secure, port), nil); res.StatusCode != http.StatusOK {
				t.Fatal(res.Status)
			}
			proxytest.Await(t, "a connection that is kept", func() bool { return proxytest.IdleUpstreams(l) == 1 })
			c := l.DialPair(proxytest.API, port, how.secure)
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", proxytest.HostPort(port))
			end(t, c, how.notify, how.fin)
			if got, err := io.ReadAll(c); len(got) != 0 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q, %v", got, err)
			}
			e := l.Want("the end", func(e audit.Event) bool { return e.Error != "" })
			if e.Verdict != policy.Allow || !strings.Contains(e.Error, "had ended its side") || asked.Load() != 2 {
				t.Errorf("asked %d times: %+v", asked.Load(), e)
			}
		})
	}
}

func url(secure bool, port uint16) string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + proxytest.HostPort(port) + "/"
}

// TestClientThatLeavesWithoutNotice: where TLS ends without a notice, nobody waits for a response any more.
func TestClientThatLeavesWithoutNotice(t *testing.T) {
	t.Parallel()
	asked, ended := make(chan struct{}), make(chan error, 1)
	l, port := endingServer(t, true, func(c net.Conn, _ *bufio.Reader) {
		close(asked)
		_, err := io.Copy(io.Discard, c)
		ended <- err
		<-t.Context().Done()
	})
	c := l.DialPair(proxytest.API, port, true)
	fmt.Fprintf(c, ask, proxytest.HostPort(port))
	<-asked
	end(t, c, false, true)
	proxytest.Await(t, "the end of the connection", func() bool { return len(l.Live.Of("box1")) == 0 && l.Upstreams() == 0 })
	<-ended
	l.Want("the end", func(e audit.Event) bool { return e.Error == relay.ErrClientGone.Error() })
}
