package authlimit

import (
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// pair returns both ends of a connection over a network, at an address of this host.
func pair(t *testing.T, network, address string) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial(network, ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// TestPeersOnThisHostAreToldByUser: two users of the host are two peers at the same address, and a closed socket does not
// count as root's.
func TestPeersOnThisHostAreToldByUser(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		client, server := pair(t, "tcp", address)
		if got, _ := peerOf(server); got != "user 0" {
			t.Errorf("root at %s is %q", address, got)
		}
		client.Close()
		if got, _ := peerOf(server); got == "user 0" {
			t.Errorf("at %s, one who has gone is %q", address, got)
		}
		if got, _ := peerOf(asAnother(t, address)); got != "user 4711" {
			t.Errorf("another user at %s is %q", address, got)
		}
	}
}

// asAnother returns the gateway's end of a connection from another user.
func asAnother(t *testing.T, address string) (server net.Conn) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 4711, ^uintptr(0)); e != 0 {
			t.Error(e)
			return
		}
		_, server = pair(t, "tcp", address)
	}()
	<-done
	if server == nil {
		t.FailNow()
	}
	return server
}

// TestTellingPeersApartIsCheap: connections are accepted one by one, so identifying the peer of a connection without a
// key must not cost the gateway more than opening it costs the client, nor delay clients with a key.
func TestTellingPeersApartIsCheap(t *testing.T) {
	_, server := pair(t, "tcp", "127.0.0.1:0")
	least := func(do func()) time.Duration {
		best := time.Hour
		for range 10 {
			began := time.Now()
			for range 20 {
				do()
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	told := least(func() { peerOf(server) })
	opened := least(func() {
		client, server := pair(t, "tcp", "127.0.0.1:0")
		client.Close()
		server.Close()
	})
	t.Logf("20 connections take %v, and telling whose they are %v", opened, told)
	if told > opened {
		t.Errorf("20 connections take %v, and telling whose they are %v", opened, told)
	}
}
