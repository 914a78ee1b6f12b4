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

// request sends a request and returns the beginning of the answer, of at most 6 bytes.
func request(t *testing.T, c net.Conn, b []byte) (string, error) {
	t.Helper()
	d, ok := c.(*Direct)
	if !ok {
		t.Fatalf("%T is not direct", c)
	}
	into := make([]byte, 6)
	n, err := d.SendRequest(b, into)
	return string(into[:n]), err
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
		begin, err := request(t, near, []byte(q))
		if begin != "answer" || err != nil {
			t.Fatalf("%q: %q, %v", q, begin, err)
		}
		if d, ok := near.(*Direct); !ok || !d.Filled() {
			t.Errorf("%q: the buffer was not filled", q)
		}
		if got, err := in.ReadString('\n'); got != " to "+q || err != nil {
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
	if _, err := request(t, near, long); err != nil {
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
		if _, err := request(t, near, []byte("request")); !errors.Is(err, ErrNotAsked) {
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
	if _, err := request(t, near, []byte("request")); !errors.Is(err, ErrNotAsked) {
		t.Errorf("closed: %v", err)
	}
}

// TestAskUntilTheDeadline: a request whose answer does not arrive in time is still sent, and the read fails.
func TestAskUntilTheDeadline(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	_ = near.SetReadDeadline(time.Now().Add(10 * time.Second))
	asked := make(chan error, 1)
	go func() {
		_, err := request(t, near, []byte("request"))
		asked <- err
	}()
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

// TestAskAServerThatEnds: the end of the stream is left to the next read, a reset is an error.
func TestAskAServerThatEnds(t *testing.T) {
	t.Parallel()
	for _, reset := range []bool{false, true} {
		near, far := pair(t)
		asked := make(chan error, 1)
		go func() {
			begin, err := request(t, near, []byte("request"))
			if begin != "" {
				t.Errorf("%q was received", begin)
			}
			asked <- err
		}()
		if _, err := io.ReadFull(far, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		if reset {
			Reset(far)
			if err := <-asked; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reset: %v", err)
			}
			continue
		}
		_ = far.CloseWrite()
		if err := <-asked; err != nil {
			t.Errorf("ended: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the read after the end: %v", err)
		}
	}
}

// TestAskForAnAnswerThatIsEarlyOrLast: an answer that arrives before the whole request was sent is left to the next read, and the end
// of the stream after an answer as well.
func TestAskForAnAnswerThatIsEarlyOrLast(t *testing.T) {
	t.Parallel()
	for _, long := range [][]byte{[]byte("request"), bytes.Repeat([]byte("0123456789abcdef"), 1<<20)} {
		near, far := pair(t)
		got := make(chan int64, 1)
		go func() {
			_, _ = io.ReadFull(far, make([]byte, 7))
			_, _ = io.WriteString(far, "answer, ended")
			_ = far.CloseWrite()
			n, _ := io.Copy(io.Discard, far)
			got <- n
		}()
		begin, err := request(t, near, long)
		if err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(near); begin+string(rest) != "answer, ended" || err != nil {
			t.Errorf("%d bytes: %q and %q, %v", len(long), begin, rest, err)
		}
		_ = near.Close()
		if n := <-got; n != int64(len(long)-7) {
			t.Errorf("%d bytes: the peer got %d more", len(long), n)
		}
	}
}

func TestAskIsInterrupted(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	asked := make(chan error, 1)
	go func() {
		_, err := request(t, near, []byte("request"))
		asked <- err
	}()
	if _, err := io.ReadFull(far, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	Abort(near)
	if err := <-asked; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
