package tunnel

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
