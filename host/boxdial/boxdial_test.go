package boxdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/namespace"
)

// inside runs f on a thread in a namespace.
func inside(t *testing.T, path string, f func() error) {
	t.Helper()
	if err := namespace.InNetNS(path, f); err != nil {
		t.Fatal(err)
	}
}

// newNamespace pins a new network namespace with its loopback up.
func newNamespace(t *testing.T) string {
	t.Helper()
	nightly.Root(t)
	path := filepath.Join(t.TempDir(), "ns")
	err := namespace.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := raiseLoopback(); err != nil {
			return err
		}
		return namespace.Pin("/proc/thread-self/ns/net", path)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Unpin(path) })
	return path
}

func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// reserve returns a port that no other program uses at any address of this machine during the test; it is taken at
// 127.0.0.1.
func reserve(t *testing.T) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).AddrPort().Port()
}

// listen answers connections to an address in a namespace with a word.
func listen(t *testing.T, path, address string, port uint16, word string) (ln net.Listener) {
	t.Helper()
	inside(t, path, func() (err error) {
		ln, err = net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		return err
	})
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(word))
			c.Close()
		}
	}()
	return ln
}

// readWord connects and returns the word it receives.
func readWord(t *testing.T, b *Boxes, to netip.AddrPort) (string, error) {
	t.Helper()
	c, err := b.Dial(t.Context(), "box1", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 16)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// at returns an address of the box with a closed port: the gateway's own loopback.
func at(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.99"), port)
}

// TestReachesLoopbackOfTheBox connects to a server that listens only on a loopback address of the box, and finds it again
// after it has moved to the other one.
func TestReachesLoopbackOfTheBox(t *testing.T) {
	t.Parallel()
	ns := newNamespace(t)
	var b Boxes
	if err := b.Add("box1", netip.MustParseAddr("::1"), ns); err != nil {
		t.Fatal(err)
	}
	port := reserve(t)
	ln := listen(t, ns, "127.0.0.1", port, "four")
	for range 2 {
		if got, err := readWord(t, &b, at(port)); got != "four" || err != nil {
			t.Fatalf("127.0.0.1: %q, %v", got, err)
		}
	}
	if len(b.boxes["box1"].ways) != 1 {
		t.Error("the way was not stored")
	}
	ln.Close()
	if _, err := readWord(t, &b, at(port)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nothing listens: %v", err)
	}
	if len(b.boxes["box1"].ways) != 0 {
		t.Error("the way was not reset")
	}
	listen(t, ns, "::1", port, "six")
	if got, err := readWord(t, &b, at(port)); got != "six" || err != nil {
		t.Errorf("::1: %q, %v", got, err)
	}
}

// TestReachesNoOtherNamespace replaces the pin of a known box with another namespace, the gateway's own, a file, or
// nothing. Then only the box's address is tried.
func TestReachesNoOtherNamespace(t *testing.T) {
	t.Parallel()
	ns, other := newNamespace(t), newNamespace(t)
	port := reserve(t) // the gateway itself listens on it
	listen(t, other, "127.0.0.1", port, "other")
	link := filepath.Join(t.TempDir(), "pin")
	for name, to := range map[string]string{
		"another": other, "the gateway's own": "/proc/self/ns/net", "a file": "/etc/hostname", "nowhere": filepath.Join(t.TempDir(), "none"),
	} {
		_ = os.Remove(link)
		if err := os.Symlink(ns, link); err != nil {
			t.Fatal(err)
		}
		var b Boxes
		if err := b.Add("box1", netip.MustParseAddr("::1"), link); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		if c, err := b.Dial(t.Context(), "box1", at(port)); err == nil {
			c.Close()
			t.Errorf("%s: connected to %v", name, c.RemoteAddr())
		}
	}
	var b Boxes
	if err := b.Add("box1", netip.Addr{}, "/proc/self/ns/net"); !errors.Is(err, errOwn) {
		t.Errorf("the gateway's own namespace: %v", err)
	}
	b = Boxes{}
	if _, err := readWord(t, &b, at(port)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a box that is not known: %v", err)
	}
}

// listenFull listens in a namespace with a queue of one connection, and accepts none.
func listenFull(t *testing.T, ns string) (full net.Listener) {
	t.Helper()
	inside(t, ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "listener")
		defer f.Close()
		full, err = net.FileListener(f) // nobody accepts
		return err
	})
	t.Cleanup(func() { full.Close() })
	return full
}

// TestDialLoopbackEnds: a server in a box that accepts no connections delays its client until a time limit only.
func TestDialLoopbackEnds(t *testing.T) {
	t.Parallel()
	ns := newNamespace(t)
	full := listenFull(t, ns)
	b := Boxes{LoopbackTimeout: 200 * time.Millisecond}
	if err := b.Add("box1", netip.MustParseAddr("::1"), ns); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the kernel gives up after two
	defer cancel()
	for range 16 {
		c, err := b.DialLoopback(ctx, "box1", "localhost", uint16(full.Addr().(*net.TCPAddr).Port))
		if errors.Is(err, errNoAnswer) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	t.Fatal("the queue does not fill")
}

// TestSlowBoxHoldsNoThread has more connections wait for a box than the limit of threads in namespaces. Connections to
// other boxes still succeed, and each attempt ends with its context.
func TestSlowBoxHoldsNoThread(t *testing.T) {
	t.Parallel()
	slow, ns := newNamespace(t), newNamespace(t)
	full := listenFull(t, slow)
	to := full.Addr().(*net.TCPAddr).AddrPort()
	pins := [2]pin{}
	for i, path := range []string{slow, ns} {
		var err error
		if pins[i], err = pinAt(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	const many = 4 * 16
	ended := make(chan error, many)
	for range many {
		go func() {
			c, err := pins[0].dial(ctx, to)
			if err == nil {
				<-ctx.Done()
				c.Close()
				err = ctx.Err()
			}
			ended <- err
		}()
	}
	port := reserve(t)
	listen(t, ns, "127.0.0.1", port, "quick")
	for range 100 {
		c, err := pins[1].dial(t.Context(), netip.AddrPortFrom(to.Addr(), port))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	cancel()
	for range many {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("an attempt outlives its context")
		}
	}
}

// TestNobodyIsReachedByChance dials a closed port that is also the only ephemeral port available for the near end, so
// that the socket would connect to itself. Each attempt is refused, and a server can still listen on the port.
func TestNobodyIsReachedByChance(t *testing.T) {
	t.Parallel()
	const port = 40_001
	ns := newNamespace(t)
	inside(t, ns, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", port, port), 0)
	})
	p, err := pinAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1", "::1"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(address), port)
		for range 10 {
			c, err := p.dial(t.Context(), to)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("%v: %v", to, err)
			}
		}
		inside(t, ns, func() error {
			ln, err := net.Listen("tcp", to.String())
			if err != nil {
				return err
			}
			return ln.Close()
		})
	}
}

func TestMain(m *testing.M) {
	runtime.LockOSThread() // /proc/self shows the main thread
	os.Exit(m.Run())
}

// TestDialLoopbackReachesNothingElse connects to the loopback addresses of a box, and to no other.
func TestDialLoopbackReachesNothingElse(t *testing.T) {
	t.Parallel()
	ns, other := newNamespace(t), newNamespace(t)
	var b Boxes
	if err := errors.Join(b.Add("box1", netip.MustParseAddr("::1"), ns), b.Add("box2", netip.MustParseAddr("::1"), other)); err != nil {
		t.Fatal(err)
	}
	port := reserve(t) // the gateway itself listens on it
	listen(t, other, "127.0.0.1", port, "other")
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "127.0.0.2", "0.0.0.0", "10.0.0.1", "", "example.com"} {
		if c, err := b.DialLoopback(t.Context(), "box1", host, port); err == nil {
			c.Close()
			t.Errorf("%q: connected to %v", host, c.RemoteAddr())
		}
	}
	if _, err := b.DialLoopback(t.Context(), "box3", "localhost", port); !errors.Is(err, errUnknown) {
		t.Errorf("a box that is not known: %v", err)
	}
	listen(t, ns, "::1", port, "six")
	c, err := b.DialLoopback(t.Context(), "box1", "localhost", port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	word := make([]byte, 8)
	if n, err := c.Read(word); string(word[:n]) != "six" || err != nil {
		t.Errorf("%q, %v", word[:n], err)
	}
}
