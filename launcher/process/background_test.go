package process

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"boxgate/policy"

	"golang.org/x/sys/unix"
)

func TestBackgroundOutputIsBounded(t *testing.T) {
	t.Parallel()
	var b Background
	writers := make([]*os.File, maxStreams+3)
	for i := range writers {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		writers[i] = w
		b.Discard("box", r)
	}
	_, neighbour, err := pipeInto(&b, "neighbour")
	if err != nil {
		t.Fatal(err)
	}
	defer neighbour.Close()
	for i, w := range writers {
		_, err := w.Write(make([]byte, 100<<10)) // more than a pipe holds, so it is being read
		if cut := i < 3; cut != errors.Is(err, unix.EPIPE) {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	b.CloseAll("box")
	for err = nil; err == nil; { // another test that starts a program may have it open for a moment
		_, err = writers[len(writers)-1].Write([]byte("x"))
	}
	if !errors.Is(err, unix.EPIPE) {
		t.Errorf("after the box is gone: %v", err)
	}
	if _, err := neighbour.Write(make([]byte, 100<<10)); err != nil {
		t.Errorf("another box: %v", err)
	}
}

func TestBackgroundOutputThatEndsIsForgotten(t *testing.T) {
	t.Parallel()
	var b Background
	r, w, err := pipeInto(&b, "box")
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); runtime.Gosched() {
		b.mu.Lock()
		left := len(b.open)
		b.mu.Unlock()
		if left == 0 {
			if err := r.Close(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("its descriptor was still open: %v", err)
			}
			return
		}
	}
	t.Error("it is still remembered")
}

func pipeInto(b *Background, box string) (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err == nil {
		b.Discard(policy.BoxID(box), r)
	}
	return r, w, err
}

// TestWasteOfABoxIsBounded: unread output of a box is first discarded at any speed, and then so slowly that reading it
// costs next to nothing. Another box does not wait for it.
func TestWasteOfABoxIsBounded(t *testing.T) {
	t.Parallel()
	var b Background
	const beyond = discardRate / 2
	begun, passed := time.Now(), 0
	for range 2 { // two commands share the rate
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			copyOutput(failing{}, r, func(n int) { b.WaitDiscard("box", n) })
		}()
		for range (discardBurst + beyond) / 2 / (32 << 10) {
			n, err := w.Write(make([]byte, 32<<10))
			if passed += n; err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		<-done
	}
	if took, least := time.Since(begun), time.Second/2-100*time.Millisecond; took < least {
		t.Errorf("%d bytes were read in %v, which may not take less than %v", passed, took, least)
	}
	if l := b.limiters["box"]; l.Tokens() > discardBurst/2 {
		t.Errorf("%v bytes are left", l.Tokens())
	}
	b.WaitDiscard("neighbour", discardBurst)
	if len(b.limiters) != 2 {
		t.Errorf("%d boxes are known", len(b.limiters))
	}
	if b.CloseAll("box"); len(b.limiters) != 1 {
		t.Error("a deleted box is known")
	}
}

// failing fails every write.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }
