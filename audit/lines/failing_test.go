package lines

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
)

// gate is a sink whose writes are slow, and then fail.
type gate struct{ begin, end chan struct{} }

func (g gate) Write([]byte) (int, error) {
	g.begin <- struct{}{}
	<-g.end
	return 0, errors.New("no space left")
}

func (g gate) TryWrite([]byte) (int, bool, error) { return 0, false, nil }

// settle waits until the writer is between two writes, and returns the pending bytes.
func settle(w *Writer) int {
	for {
		w.mu.Lock()
		n, writing := len(w.pending), w.writing
		w.mu.Unlock()
		if !writing {
			return n
		}
	}
}

// However often a slow sink fails, the pending bytes stay within the limit, and one source leaves space for others.
func TestPendingIsBoundedWhileWritesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate{make(chan struct{}), make(chan struct{})}
		w := New(g)
		line := append(bytes.Repeat([]byte("x"), 999), '\n')
		var share Share
		w.Add(line, Reservation{By: &share})
		for range 8 {
			<-g.begin
			for w.Add(line, Reservation{By: &share}) {
			}
			g.end <- struct{}{}
			if n := settle(w); n > limit {
				t.Fatalf("%d bytes are pending", n)
			}
		}
		if <-g.begin; !w.Add(line, Reservation{By: new(Share)}) {
			t.Error("one source has taken all the room")
		}
		for w.Add(line, Reservation{}) {
		}
		g.end <- struct{}{}
		if n := settle(w); n > limit {
			t.Errorf("%d bytes are pending", n)
		}
	})
}

// A Sync that begins during the last write ends with it.
func TestSyncDuringTheLastWrite(t *testing.T) {
	f := &fake{blocked: make(chan struct{})}
	w := New(f)
	w.Add([]byte("line\n"), Reservation{})
	until := func(holds func() bool) {
		for {
			w.mu.Lock()
			ok := holds()
			w.mu.Unlock()
			if ok {
				return
			}
		}
	}
	until(func() bool { return w.writing })
	done := make(chan error)
	go func() { done <- w.Sync() }()
	until(func() bool { return len(w.syncers) > 0 })
	blocked := f.blocked
	f.mu.Lock()
	f.blocked = nil
	f.mu.Unlock()
	close(blocked)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
