package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/internal/socket/sockettest"
	"boxgate/proxy/proxytest"
)

// counted is a server that counts what it is asked, and knows its connections.
type counted struct {
	mu    sync.Mutex
	conns []net.Conn
	asked map[string]int // by the method
}

func (s *counted) serve(c net.Conn, r *bufio.Reader) {
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.mu.Unlock()
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		s.mu.Lock()
		s.asked[req.Method]++
		s.mu.Unlock()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

func (s *counted) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[method]
}

// TestServerVanishesBehindAKeptConnection: a request that can be repeated is, once, when nothing is acknowledged on a
// connection that was kept; another one waits, and arrives once.
func TestServerVanishesBehindAKeptConnection(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("client with HTTP/2: ", h2), func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll)
			s := &counted{asked: map[string]int{}}
			port := l.RawServer(true, s.serve)
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			url := "https://" + proxytest.HostPort(port) + "/"
			clients := []*http.Client{l.HTTPClient(port, h2), l.HTTPClient(port, h2)}
			var both sync.WaitGroup
			for _, c := range clients { // each with a connection of its own, which rests afterwards
				both.Go(func() {
					for range 3 {
						if res, _ := proxytest.Get(t, c, url, nil); res.StatusCode != http.StatusOK {
							t.Error(res.Status)
						}
					}
				})
			}
			both.Wait()
			proxytest.Await(t, "connections that are kept", func() bool { return proxytest.IdleUpstreams(l) == l.Upstreams() })
			var back []func()
			s.mu.Lock()
			for _, c := range s.conns {
				back = append(back, sockettest.Vanish(t, c))
			}
			s.mu.Unlock()
			before := s.count("GET")
			posted := make(chan string, 1)
			kept := l.Upstreams()
			go func() {
				res, err := clients[0].Post(url, "", nil)
				if err != nil {
					posted <- err.Error()
					return
				}
				_ = res.Body.Close()
				posted <- res.Status
			}()
			proxytest.Await(t, "the request that waits", func() bool { return proxytest.IdleUpstreams(l) < kept })
			if res, _ := proxytest.Get(t, clients[1], url, nil); res.StatusCode != http.StatusOK {
				t.Errorf("the request that can be repeated: %s", res.Status)
			}
			if n := s.count("GET") - before; n != 1 {
				t.Errorf("the server was asked %d times", n)
			}
			if n := s.count("POST"); n != 0 {
				t.Errorf("the request that cannot be repeated has come %d times, on another connection", n)
			}
			for _, f := range back {
				f()
			}
			if status := <-posted; status != "200 OK" || s.count("POST") != 1 {
				t.Errorf("the request that cannot be repeated: %s, %d times", status, s.count("POST"))
			}
		})
	}
}

// TestAttackSecretIsSentAgainAfterItsRule: a request whose server has vanished is not sent again with what its rule has ceased to set.
func TestAttackSecretIsSentAgainAfterItsRule(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("client with HTTP/2: ", h2), func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll)
			kept, sent := make(chan net.Conn, 10), make(chan string, 10)
			port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
				kept <- c
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					sent <- req.Header.Get("Authorization")
					fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
			l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
			client, url := l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/"
			if res, _ := proxytest.Get(t, client, url, nil); res.StatusCode != http.StatusOK || <-sent != "Bearer s3cret" {
				t.Fatal(res.Status)
			}
			proxytest.Await(t, "a connection that is kept", func() bool { return proxytest.IdleUpstreams(l) == 1 })
			sockettest.Vanish(t, <-kept)
			status := make(chan int, 1)
			go func() {
				res, err := client.Get(url)
				if err != nil {
					t.Error(err)
					status <- 0
					return
				}
				_ = res.Body.Close()
				status <- res.StatusCode
			}()
			proxytest.Await(t, "the request that waits", func() bool { return proxytest.IdleUpstreams(l) == 0 })
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			l.Proxy.Recheck("box1")
			if s := <-status; s != http.StatusBadGateway {
				t.Errorf("it is answered %d", s)
			}
			select {
			case v := <-sent:
				t.Errorf("the server is sent %q", v)
			default:
			}
		})
	}
}
