package relay

import (
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"boxgate/relay/h2"
)

// waiter counts what a poller tells it.
type waiter struct{ answered, overdue chan struct{} }

func newWaiter() waiter { return waiter{make(chan struct{}, 1), make(chan struct{}, 1)} }

func (w waiter) Answered(*h2.Batch) { w.answered <- struct{}{} }
func (w waiter) Overdue()           { w.overdue <- struct{}{} }

// came waits until c has something.
func came(t *testing.T, c chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal(what)
	}
}

// connected returns a connection and its peer.
func connected(t *testing.T) (syscall.RawConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	raw, err := near.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return raw, far.(*net.TCPConn)
}

// watched returns the watch of a connection by a poller, and its peer.
func watched(t *testing.T, p *Poller) (*Watch, *net.TCPConn) {
	t.Helper()
	raw, far := connected(t)
	w := p.Add(raw)
	if w == nil {
		t.Fatal("not watched")
	}
	t.Cleanup(w.Close)
	return w, far
}

// TestRemove: epoll no longer watches a removed connection, which can be watched again.
func TestRemove(t *testing.T) {
	t.Parallel()
	var p Poller
	defer p.Close()
	raw, far := connected(t)
	for range 2*runtime.GOMAXPROCS(0) + 1 { // each epoll instance twice
		w := p.Add(raw)
		if w == nil {
			t.Fatal("the connection is still watched")
		}
		w.Remove(raw)
	}
	w, waits := p.Add(raw), newWaiter()
	w.Arm(waits)
	if !w.Wait() {
		t.Fatal("no wait")
	}
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	came(t, waits.answered, "an event of a connection that is watched again")
	w.Remove(raw)
}

// TestWaitsEnd: a request that waits is told of data and of the end of the connection, once, and of neither after Stop.
func TestWaitsEnd(t *testing.T) {
	t.Parallel()
	p := &Poller{}
	defer p.Close()
	for range 2 * runtime.GOMAXPROCS(0) {
		w, far := watched(t, p)
		for _, event := range []func(){func() { _, _ = far.Write([]byte("x")) }, func() { _ = far.Close() }} {
			to := newWaiter()
			if w.Arm(to); !w.Wait() {
				t.Fatal("an event before anything was sent")
			}
			event()
			came(t, to.answered, "nothing is told of what has arrived")
			if w.Stop() {
				t.Error("the wait goes on afterwards")
			}
		}
		if w.Arm(newWaiter()); w.Wait() && !w.Stop() {
			t.Error("a wait is not stopped")
		}
	}
}

// TestAnswerBeforeTheWait: what arrives before the wait begins is not lost.
func TestAnswerBeforeTheWait(t *testing.T) {
	t.Parallel()
	p := &Poller{}
	defer p.Close()
	w, far := watched(t, p)
	w.Arm(newWaiter())
	_, _ = far.Write([]byte("x"))
	for end := time.Now().Add(time.Minute); w.state.Load() == watchArmed; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("no event")
		}
	}
	if w.Wait() {
		t.Error("a wait for what has arrived")
	}
}

// TestLongWaitsAreOverdue: a request whose server is silent gets a goroutine, as all do when the poller is closed. Nothing is watched
// afterwards.
func TestLongWaitsAreOverdue(t *testing.T) {
	t.Parallel()
	p := &Poller{}
	silent, _ := watched(t, p)
	late := newWaiter()
	silent.Arm(late)
	silent.Wait()
	came(t, late.overdue, "a long wait goes on")
	last := newWaiter()
	silent.Arm(last)
	silent.Wait()
	p.Close()
	came(t, last.overdue, "a wait outlives the poller")
	if silent.Arm(last); silent.Wait() {
		t.Error("a wait begins after Close")
	}
	if p.Add(nil) != nil {
		t.Error("a connection is watched after Close")
	}
}

// TestNoWaitAfterItsEnd: a request whose connection was aborted before its wait began, or continued, does not wait: no event would end
// that.
func TestNoWaitAfterItsEnd(t *testing.T) {
	t.Parallel()
	p := &Poller{}
	defer p.Close()
	sent, _ := watched(t, p)
	if sent.Arm(newWaiter()); sent.End() {
		t.Error("a wait that has not begun was ended")
	}
	if sent.Wait() {
		t.Error("a wait begins after its end")
	}
	answered, far := watched(t, p)
	to := newWaiter()
	if answered.Arm(to); !answered.Wait() {
		t.Fatal("an event before anything was sent")
	}
	_, _ = far.Write([]byte("x"))
	came(t, to.answered, "nothing is told of what has arrived")
	if answered.End(); answered.Again() {
		t.Error("a wait goes on after its end")
	}
	waiting, _ := watched(t, p)
	if waiting.Arm(newWaiter()); !waiting.Wait() || !waiting.End() || waiting.Stop() {
		t.Error("a wait is not ended, once")
	}
}
