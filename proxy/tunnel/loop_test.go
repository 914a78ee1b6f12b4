package tunnel

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/internal/socket/sockettest"
)

// TestAttackMuchToMoveHoldsNobodyUp: a byte of one box does not wait for a turn of all busy tunnels of another box.
func TestAttackMuchToMoveHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	l, p := &loop{}, newPool(t)
	add := func() (*Tunnel, *net.TCPConn, *net.TCPConn) {
		box, far := tcpPair(t)
		upstream, srv := tcpPair(t)
		tun := p.Splice(Spec{Client: far, Box: "box1", Owner: make(ending, 1), Count: newCounters()}, upstream)
		for i := range tun.ends {
			tun.ends[i].fd = descriptor(tun.ends[i].conn)
		}
		if !l.add(tun) {
			t.Fatal("the loop has ended")
		}
		t.Cleanup(func() { _ = tun.Close() })
		return tun, box, srv
	}
	event := func(tun *Tunnel) unix.EpollEvent {
		return unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT, Fd: tun.slot.index<<1 | client, Pad: tun.slot.serial}
	}
	const many, much = 8, 96 << 10
	var bulk []*Tunnel
	var boxes []*net.TCPConn
	var events []unix.EpollEvent
	for range many {
		tun, box, _ := add()
		bulk, boxes, events = append(bulk, tun), append(boxes, box), append(events, event(tun))
	}
	send := func() {
		for i, box := range boxes {
			if _, err := box.Write(make([]byte, much)); err != nil {
				t.Fatal(err)
			}
			arrive(t, bulk[i].ends[client].fd, much)
		}
	}
	moved := func() (n int) {
		for _, tun := range bulk {
			if tun.Count.Out.Swap(0) > 0 {
				n++
			}
		}
		return n
	}
	send()
	if l.handleEvents(events); moved() != many {
		t.Fatal("a new tunnel is delayed")
	}
	for len(l.busy) > 0 {
		l.handleEvents(nil)
	}
	_ = moved()
	send()
	quiet, box, srv := add()
	if _, err := box.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	arrive(t, quiet.ends[client].fd, 1)
	l.handleEvents(append(events, event(quiet)))
	_ = srv.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(srv, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if n := moved(); n != 1 {
		t.Errorf("%d of the others have had a turn", n)
	}
	for range many - 1 {
		l.handleEvents(nil)
	}
	if n := moved(); n != many-1 {
		t.Errorf("then %d of the others have had a turn", n)
	}
}

// arrive waits until much bytes can be read from a socket.
func arrive(t *testing.T, fd, much int) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		switch {
		case err != nil:
			t.Fatal(err)
		case n >= much:
			return
		case time.Now().After(limit):
			t.Fatalf("%d bytes of %d have arrived", n, much)
		}
	}
}

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
