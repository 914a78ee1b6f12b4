package proxy_test

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	"boxgate/internal/memory"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// kept is an intercepted connection over HTTP/1.1.
type kept struct {
	*proxytest.Rig
	raw *net.TCPConn
	tls *tls.Conn
	in  *bufio.Reader
	at  string // address for further connections
}

func keep(t *testing.T, budget *memory.Budget) *kept {
	t.Helper()
	r := proxytest.New(t, proxytest.Allow(cdn), func(c *proxy.Config) { c.Memory = budget })
	cert := r.Upstream.Certificate(t, cdn)
	server := r.Server(443, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
		for in := bufio.NewReader(s); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = s.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		}
	})
	r.Names.Set(cdn, server.Addr())
	r.Policy(proxytest.Allow(cdn), map[string]map[string]string{cdn: {"X-Key": "k"}})
	k := &kept{Rig: r, at: r.Listen(server)}
	k.raw = proxytest.DialTo(t, k.at)
	k.tls = tls.Client(k.raw, &tls.Config{ServerName: cdn, RootCAs: r.BoxCA.Pool(), NextProtos: []string{"http/1.1"}})
	k.in = bufio.NewReader(k.tls)
	if err := k.tls.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kept) request() error {
	if _, err := k.tls.Write([]byte("GET / HTTP/1.1\r\nHost: " + cdn + "\r\n\r\n")); err != nil {
		return err
	}
	res, err := http.ReadResponse(k.in, nil)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

// Memory charged for terminated TLS, with a running request and, at most, without.
const fullTLS, idleTLS = 208 << 10, 40 << 10

// TestIdleInterceptionsAreChargedForWhatTheyHold: an intercepted connection without a request releases memory that it does
// not use, and reserves all of it again before the next read from the client. If memory is short, it is closed.
func TestIdleInterceptionsAreChargedForWhatTheyHold(t *testing.T) {
	t.Parallel()
	budget := memory.New(64<<20, 4<<20)
	k := keep(t, budget)
	rests := func() {
		t.Helper()
		proxytest.Await(t, "the connection to rest", func() bool { return budget.InUse(memory.TLS) <= idleTLS })
		if budget.InUse(memory.TLS) == 0 {
			t.Error("an idle connection is not charged")
		}
	}
	rests()
	for range 3 {
		if err := k.request(); err != nil {
			t.Fatal(err)
		}
		if held := budget.InUse(memory.TLS); held != fullTLS && held > idleTLS {
			t.Errorf("%d bytes are charged", held)
		}
		rests()
	}
	account := budget.Account(string(k.Box.ID))
	taken := 0
	for account.Acquire(memory.Buffers, 16<<10) {
		taken += 16 << 10
	}
	if err := k.request(); err == nil {
		t.Error("without memory a request was served")
	}
	account.Release(memory.Buffers, taken)
	proxytest.Await(t, "every claim to be given back", func() bool { return budget.InUse(memory.TLS) == 0 })
}

// TestAttackIdleInterceptionHoldsMore: a client that sends the beginning of a record and goes idle, immediately or after
// its connection was idle, is charged for all memory that this may take.
func TestAttackIdleInterceptionHoldsMore(t *testing.T) {
	t.Parallel()
	for name, resting := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := memory.New(64<<20, 64<<20)
			k := keep(t, budget)
			if err := k.request(); err != nil {
				t.Fatal(err)
			}
			if resting {
				proxytest.Await(t, "the connection to rest", func() bool { return budget.InUse(memory.TLS) <= idleTLS })
			}
			if _, err := k.raw.Write([]byte{23, 3, 3, 0x40, 0, 1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			proxytest.Await(t, "the connection to be charged", func() bool { return budget.InUse(memory.TLS) == fullTLS })
			for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				if held := budget.InUse(memory.TLS); held != fullTLS {
					t.Fatalf("with half a record, %d bytes are charged", held)
				}
			}
		})
	}
}
