package session

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestVanishedClients: the kernel's TCP state distinguishes a client that does not read from one that has vanished.
func TestVanishedClients(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	loopback(t, true)
	unread, silent := connected(t), connected(t)
	if _, err := unread.Write(make([]byte, queueLimit)); err != nil {
		t.Fatal(err)
	}
	const silence = 300 * time.Millisecond
	gone := func(q *queue) (gone bool) {
		q.withFD(func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			gone = err == nil && vanished(info, silence)
			return err
		})
		return gone
	}
	for end := time.Now().Add(3 * silence); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if gone(unread) || gone(silent) {
			t.Fatal("a client that does not read has vanished")
		}
	}
	loopback(t, false)
	if _, err := silent.Write([]byte("anybody there?")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !gone(silent); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a client that answers nothing has not vanished")
		}
	}
	if silent.idle() && silent.waitDelivered(endedSoon(t)) == nil {
		t.Error("what nobody received was delivered")
	}
}

func endedSoon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// loopback sets the loopback interface of this thread's namespace up or down.
func loopback(t *testing.T, up bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	if up {
		req.SetUint16(unix.IFF_UP)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		t.Fatal(err)
	}
}

// connected returns the queue of a connection whose peer does not read.
func connected(t *testing.T) *queue {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if tcp, ok := client.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4096)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(server)
	t.Cleanup(func() { _, _ = q.Close(), client.Close() })
	return q
}

// TestInputIsBounded: buffered input is bounded per session and for all sessions, and its memory is released.
func TestInputIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := &budget{limit: maxInput + maxInput/2}
		fill := func() (i *inbox, kept func() int, stop func()) {
			i = newInbox(false, shared)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for n := 0; n < 3*maxInput>>20 && ctx.Err() == nil; n++ {
					_ = i.add(ctx, make([]byte, 1<<20))
				}
			}()
			synctest.Wait()
			return i, func() int { i.mu.Lock(); defer i.mu.Unlock(); return len(i.buf) }, func() { cancel(); i.discard(); synctest.Wait() }
		}
		first, kept, stopFirst := fill()
		if n := kept(); n < maxInput || n > maxInput+3<<20 {
			t.Errorf("one session: %d bytes", n)
		}
		_, keptBySecond, stopSecond := fill()
		if n := keptBySecond(); n < maxUnread || n > maxInput/2+3<<20 {
			t.Errorf("with another session: %d bytes", n)
		}
		_, _ = io.ReadFull(first, make([]byte, 8<<20))
		synctest.Wait()
		if n := kept(); n > maxInput+3<<20 {
			t.Errorf("after some was read: %d bytes", n)
		}
		stopFirst()
		stopSecond()
		if n := shared.used.Load(); n != 0 {
			t.Errorf("%d bytes are still taken by sessions that have ended", n)
		}
	})
}
