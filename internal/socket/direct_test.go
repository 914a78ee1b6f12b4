package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns the two ends of a TCP connection, the first with direct reads and writes.
func pair(t *testing.T) (net.Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return NewDirect(c.(*net.TCPConn)), far.(*net.TCPConn)
}

// TestDirectMovesMoreThanTheKernelHolds: one write larger than the socket buffers is sent whole and comes back.
func TestDirectMovesMoreThanTheKernelHolds(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	go func() {
		_, _ = io.Copy(far, struct{ io.Reader }{far})
		_ = far.CloseWrite()
	}()
	go func() {
		if n, err := near.Write(sent); n != len(sent) || err != nil {
			t.Errorf("wrote %d bytes: %v", n, err)
		}
		CloseWrite(near)
	}()
	got, err := io.ReadAll(near)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(sent), err)
	}
}

func TestDirectKeepsDeadlines(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	b := make([]byte, 8)
	_ = near.SetReadDeadline(time.Now().Add(time.Millisecond))
	var timeout net.Error
	if _, err := near.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read without data: %v", err)
	}
	_ = near.SetReadDeadline(time.Time{})
	if _, err := far.Write([]byte("later")); err != nil {
		t.Fatal(err)
	}
	if n, err := near.Read(b); string(b[:n]) != "later" || err != nil {
		t.Errorf("after the deadline was taken back: %q, %v", b[:n], err)
	}
	_ = near.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	var err error
	for err == nil { // the peer does not read
		_, err = near.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write to a peer that does not read: %v", err)
	}
}

func TestDirectEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(near net.Conn, far *net.TCPConn)
		want error
	}{
		"the peer ends":   {func(_ net.Conn, far *net.TCPConn) { _ = far.Close() }, io.EOF},
		"the peer resets": {func(_ net.Conn, far *net.TCPConn) { Reset(far) }, syscall.ECONNRESET},
		"closed here":     {func(near net.Conn, _ *net.TCPConn) { _ = near.Close() }, net.ErrClosed},
		"aborted here":    {func(near net.Conn, _ *net.TCPConn) { Abort(near) }, net.ErrClosed},
	} {
		near, far := pair(t)
		go c.end(near, far) // before the read, or while it waits
		if _, err := near.Read(make([]byte, 8)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestDirectIsTheTCPConnection(t *testing.T) { // not parallel: it counts allocations
	near, _ := pair(t)
	if tcp, ok := TCP(near); !ok || tcp.LocalAddr().String() != near.LocalAddr().String() {
		t.Errorf("TCP connection below: %v, %v", tcp, ok)
	}
	b := []byte{1}
	if n := testing.AllocsPerRun(100, func() { _, _ = near.Write(b) }); n != 0 {
		t.Errorf("%v allocations for a write", n)
	}
}

// TestDirectDoesNotWait: with SetNonBlocking a read returns the received data, or a timeout if there is none yet.
func TestDirectDoesNotWait(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	d, ok := near.(*Direct)
	if !ok {
		t.Fatalf("%T is not direct", near)
	}
	d.SetNonBlocking(true)
	b := make([]byte, 8)
	if n, err := d.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !d.Quiet() || d.Ended() {
		t.Errorf("before anything has come: %d, %v", n, err)
	}
	_, _ = io.WriteString(far, "x")
	arrives := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); d.Quiet(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing has come")
			}
		}
	}
	arrives()
	if n, err := d.Read(b); n != 1 || err != nil || d.Ended() {
		t.Errorf("%d, %v", n, err)
	}
	_ = far.CloseWrite()
	arrives()
	if n, err := d.Read(b); n != 0 || !errors.Is(err, io.EOF) || !d.Ended() || State(d) != unix.BPF_TCP_CLOSE_WAIT {
		t.Errorf("at the end: %d, %v, state %d", n, err, State(d))
	}
	d.SetNonBlocking(false)
	_ = near.Close()
	if State(d) != unix.BPF_TCP_CLOSE {
		t.Errorf("closed, it is in state %d", State(d))
	}
}
