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
	writers := make([]*os.File, maxBackground+3)
	for i := range writers {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		writers[i] = w
		b.Swallow("box", r)
	}
	_, neighbour, err := pipeInto(&b, "neighbour")
	if err != nil {
		t.Fatal(err)
	}
	defer neighbour.Close()
	for i, w := range writers {
		_, err := w.Write(make([]byte, 100<<10)) // more than a pipe holds: somebody reads it
		if cut := i < 3; cut != errors.Is(err, unix.EPIPE) {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	b.Drop("box")
	for err = nil; err == nil; { // a program that another test is just starting may have it open for a moment
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
		b.Swallow(policy.BoxID(box), r)
	}
	return r, w, err
}
