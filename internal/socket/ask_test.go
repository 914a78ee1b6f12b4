package socket

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func request(t *testing.T, c net.Conn, b []byte) error {
	t.Helper()
	d, ok := c.(*Direct)
	if !ok {
		t.Fatalf("%T is not direct", c)
	}
	return d.SendRequest(b)
}

func TestAskAndAnswer(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	go func() {
		in := bufio.NewReader(far)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(far, "answer to "+line)
		}
	}()
	in := bufio.NewReader(near)
	for _, q := range []string{"one\n", "two\n", "three\n"} {
		if err := request(t, near, []byte(q)); err != nil {
			t.Fatal(err)
		}
		if got, err := in.ReadString('\n'); got != "answer to "+q || err != nil {
			t.Errorf("%q: %q, %v", q, got, err)
		}
	}
}

// TestAskMoreThanTheKernelHolds: a request larger than the socket buffers is sent whole.
func TestAskMoreThanTheKernelHolds(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	got := make(chan []byte, 1)
	go func() {
		b := make([]byte, len(long))
		_, _ = io.ReadFull(far, b)
		got <- b
	}()
	if err := request(t, near, long); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(<-got, long) {
		t.Error("another request arrived")
	}
}

// TestAskOnlyTheSilent: SendRequest sends no byte to a peer that has sent data or closed.
func TestAskOnlyTheSilent(t *testing.T) {
	t.Parallel()
	for name, speak := range map[string]func(far *net.TCPConn){
		"data":  func(far *net.TCPConn) { _, _ = io.WriteString(far, "x") },
		"end":   func(far *net.TCPConn) { _ = far.CloseWrite() },
		"reset": func(far *net.TCPConn) { Reset(far) },
	} {
		near, far := pair(t)
		_ = near.SetDeadline(time.Now().Add(10 * time.Second)) // a request waits for its answer
		speak(far)
		if name == "data" { // wait until it has arrived
			tcp, _ := TCP(near)
			raw, err := tcp.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Read(func(fd uintptr) bool {
				_, errno := transmit(syscall.SYS_RECVFROM, fd, make([]byte, 1), syscall.MSG_PEEK)
				return errno == 0
			})
		} else { // the first read finds the end, and later ones too
			_, _ = near.Read(make([]byte, 1))
		}
		if err := request(t, near, []byte("request")); !errors.Is(err, ErrNotAsked) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "reset" {
			continue
		}
		_ = near.Close()
		if got, _ := io.ReadAll(far); len(got) > 0 {
			t.Errorf("%s: the peer was sent %q", name, got)
		}
	}
	near, _ := pair(t)
	_ = near.Close()
	if err := request(t, near, []byte("request")); !errors.Is(err, ErrNotAsked) {
		t.Errorf("closed: %v", err)
	}
}

// TestAskUntilTheDeadline: a request whose answer does not arrive in time is still sent, and the read fails.
func TestAskUntilTheDeadline(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	_ = near.SetReadDeadline(time.Now().Add(10 * time.Second))
	asked := make(chan error, 1)
	go func() { asked <- request(t, near, []byte("request")) }()
	b := make([]byte, 7)
	if _, err := io.ReadFull(far, b); string(b) != "request" {
		t.Fatalf("%q, %v", b, err)
	}
	_ = near.SetReadDeadline(time.Now())
	if err := <-asked; err != nil {
		t.Errorf("asked: %v", err)
	}
	if _, err := near.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read after the deadline: %v", err)
	}
	_ = near.SetReadDeadline(time.Time{})
	_, _ = io.WriteString(far, "answer")
	if n, err := near.Read(b); string(b[:n]) != "answer" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

func TestAskIsInterrupted(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	asked := make(chan error, 1)
	go func() { asked <- request(t, near, []byte("request")) }()
	if _, err := io.ReadFull(far, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	Abort(near)
	if err := <-asked; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
