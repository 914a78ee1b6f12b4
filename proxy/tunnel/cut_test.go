package tunnel

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAttackCutHitsNoOtherSocket: a tunnel is cut after its sockets have been closed and a descriptor number was reused by
// another socket. It is not parallel, because other tests would take the number.
func TestAttackCutHitsNoOtherSocket(t *testing.T) {
	p := newPool(t)
	_, far := tcpPair(t)
	upstream, _ := tcpPair(t)
	number := descriptor(far)
	tun := p.Splice(Spec{Client: far, Box: "box1", Owner: make(ending, 1), Count: newCounters()}, upstream)
	far.Close()
	other := -1
	for range 64 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if fd == number {
			other = fd
			break
		}
	}
	if other < 0 {
		t.Fatalf("no socket got the number %d", number)
	}
	if err := errors.Join(tun.Close(), tun.Close()); err != nil {
		t.Fatal(err)
	}
	on, err := unix.GetsockoptInt(other, unix.SOL_SOCKET, unix.SO_LINGER)
	if err != nil || on != 0 {
		t.Errorf("the other socket: SO_LINGER %d, %v", on, err)
	}
}

// TestAttackLateEventOfAnEarlierTunnel: a pending event for the sockets of a closed tunnel, such as their end, is not
// applied to the tunnel that now has its slot.
func TestAttackLateEventOfAnEarlierTunnel(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	begin := func() (*Tunnel, *net.TCPConn, *net.TCPConn, ending) {
		box, far := tcpPair(t)
		upstream, srv := tcpPair(t)
		o := make(ending, 1)
		tun := p.Splice(Spec{Client: far, Box: "box1", Owner: o, Count: newCounters()}, upstream)
		tun.Start()
		return tun, box, srv, o
	}
	first, _, _, o := begin()
	loop, late := first.loop, first.slot
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	<-o
	for range 2 * runtime.GOMAXPROCS(0) {
		tun, box, srv, o := begin()
		if tun.loop != loop || tun.slot.index != late.index {
			continue
		}
		if got := loop.tunnelAt(late); got != nil {
			got.handleEvent(client, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP) // as the loop does
		}
		for range 2 {
			if _, err := io.WriteString(box, "x"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(srv, make([]byte, 1)); err != nil {
				t.Fatalf("the tunnel that now has the slot: %v", err)
			}
		}
		_ = tun.Close()
		<-o
		return
	}
	t.Fatal("no tunnel got the slot of the first")
}
