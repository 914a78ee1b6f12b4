package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCallsOnBareSockets: the calls work on IPv4 and IPv6 sockets and never wait.
func TestCallsOnBareSockets(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		to := netip.MustParseAddrPort(ln.Addr().String())
		family := unix.AF_INET
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(at, err)
		}
		_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
		far, err := ln.Accept()
		if err != nil {
			t.Fatal(at, err)
		}
		defer far.Close()
		near := awaited{t, fd}
		near.write("hello")
		if got, err := io.ReadAll(io.LimitReader(far, 5)); err != nil || string(got) != "hello" {
			t.Errorf("%s: the peer got %q, %v", at, got, err)
		}
		if _, err := Recv(fd, make([]byte, 10)); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%s: a read of nothing ends with %v", at, err)
		}
		if !Quiet(fd) {
			t.Errorf("%s: the peer has sent nothing, and is not quiet", at)
		}
		if _, err := io.WriteString(far, "answer"); err != nil {
			t.Fatal(err)
		}
		near.splice(far, "answer")
		if err := Finish(fd); err != nil {
			t.Error(err)
		}
		if rest, err := io.ReadAll(far); err != nil || len(rest) > 0 {
			t.Errorf("%s: the peer sees the end as %q, %v", at, rest, err)
		}
		far.Close()
		near.until(unix.EPOLLRDHUP)
		if Quiet(fd) {
			t.Errorf("%s: the peer has ended, and is quiet", at)
		}
		if n, err := Recv(fd, make([]byte, 10)); n != 0 || err != nil {
			t.Errorf("%s: the end is %d bytes, %v", at, n, err)
		}
		Close(fd)
		if _, err := Send(fd, []byte("x")); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: a write to what is closed ends with %v", at, err)
		}
	}
}

// awaited is a socket with an epoll(7) instance.
type awaited struct {
	t  *testing.T
	fd int
}

// until waits for an event of the socket.
func (a awaited) until(what uint32) {
	a.t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		a.t.Fatal(err)
	}
	defer unix.Close(epoll)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, a.fd, &unix.EpollEvent{Events: what, Fd: int32(a.fd)}); err != nil {
		a.t.Fatal(err)
	}
	if _, err := unix.EpollWait(epoll, make([]unix.EpollEvent, 1), 60_000); err != nil && !errors.Is(err, unix.EINTR) {
		a.t.Fatal(err)
	}
	events := make([]unix.EpollEvent, 2)
	if n, err := Events(epoll, events); n != 1 || err != nil || events[0].Events&what == 0 || events[0].Fd != int32(a.fd) {
		a.t.Fatalf("%d events %+v, %v", n, events, err)
	}
}

func (a awaited) write(s string) {
	a.t.Helper()
	a.until(unix.EPOLLOUT)
	if n, err := Send(a.fd, []byte(s)); n != len(s) || err != nil {
		a.t.Fatal(n, err)
	}
}

// splice moves the received data through a pipe back to the peer.
func (a awaited) splice(far net.Conn, want string) {
	a.t.Helper()
	a.until(unix.EPOLLIN)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		a.t.Fatal(err)
	}
	defer Close(pipe[0])
	defer Close(pipe[1])
	if _, err := Splice(pipe[0], a.fd, 10); !errors.Is(err, unix.EAGAIN) {
		a.t.Errorf("from an empty pipe: %v", err)
	}
	if Quiet(a.fd) {
		a.t.Error("the peer has sent something, and is quiet")
	}
	in, err := Splice(a.fd, pipe[1], 1<<20)
	if in != len(want) || err != nil {
		a.t.Fatal(in, err)
	}
	if out, err := Splice(pipe[0], a.fd, in); out != in || err != nil {
		a.t.Fatal(out, err)
	}
	got := make([]byte, in)
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, []byte(want)) {
		a.t.Errorf("the peer got %q, %v", got, err)
	}
}
