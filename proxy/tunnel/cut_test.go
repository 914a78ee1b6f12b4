package tunnel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAttackCutHitsNoOtherSocket: a tunnel is cut when its sockets have been closed already, and the number of one is that
// of another socket by now. It is not parallel: others would take the number.
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
