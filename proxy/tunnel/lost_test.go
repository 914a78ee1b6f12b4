package tunnel

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/internal/socket/sockettest"
)

// TestTunnelToAServerThatVanishes: a tunnel is closed if its server acknowledges no data, and stays open if the server is
// there but does not read for a minute. It waits for the kernel's own timers.
func TestTunnelToAServerThatVanishes(t *testing.T) {
	nightly.Root(t)
	nightly.Only(t)
	t.Parallel()
	p := newPool(t)
	ln := listen(t)
	lost, lostOwner, lostNear, _ := dialling(t, p, ln.Addr(), "hello")
	lost.Start()
	gone, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	<-lostOwner.opened
	slow, slowOwner, slowNear, _ := dialling(t, p, ln.Addr(), "hello")
	slow.Start()
	reader, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	<-slowOwner.opened
	sockettest.Vanish(t, gone)
	_, _ = io.WriteString(lostNear, "anybody?")
	const size = 64 << 20
	go func() {
		defer slowNear.CloseWrite()
		b := make([]byte, 1<<20)
		for range size / len(b) {
			if _, err := slowNear.Write(b); err != nil {
				return
			}
		}
	}()
	began := time.Now()
	if err := <-lostOwner.ended; !errors.Is(err, ErrLost) {
		t.Errorf("it ended with %v after %v", err, time.Since(began))
	}
	select {
	case err := <-slowOwner.ended:
		t.Fatalf("the tunnel whose server does not read ended with %v", err)
	case <-time.After(time.Minute - time.Since(began)):
	}
	if n, err := io.Copy(io.Discard, reader); err != nil || n != size+5 {
		t.Errorf("it received %d bytes: %v", n, err)
	}
}

// TestKeepAliveOfTunnels: the kernel detects that an idle server has vanished.
func TestKeepAliveOfTunnels(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	tun, o, _, _ := dialling(t, newPool(t), ln.Addr(), "hello")
	tun.Start()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-o.opened
	tun.expire() // as after keepAliveAfter
	tun.mu.Lock()
	defer tun.mu.Unlock()
	fd := tun.ends[server].fd
	for option, want := range map[int]int{unix.TCP_KEEPIDLE: 15, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3} {
		if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option); err != nil || got != want {
			t.Errorf("option %d is %d: %v", option, got, err)
		}
	}
	if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on != 1 {
		t.Error("there is none", err)
	}
}
