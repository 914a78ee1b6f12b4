package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a sink that the test controls.
type fake struct {
	mu      sync.Mutex
	writes  []string
	blocked chan struct{} // if not nil, writes wait for it to be closed
	failing error
	short   int // number of bytes written by a failing write
}

func (f *fake) Write(b []byte) (int, error) {
	f.mu.Lock()
	blocked := f.blocked
	f.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil {
		f.writes = append(f.writes, string(b[:f.short]))
		return f.short, f.failing
	}
	f.writes = append(f.writes, string(b))
	return len(b), nil
}

func (f *fake) TryWrite(b []byte) (int, bool, error) {
	f.mu.Lock()
	blocked := f.blocked
	f.mu.Unlock()
	if blocked != nil {
		return 0, false, nil
	}
	n, err := f.Write(b)
	return n, true, err
}

// block makes writes wait until unblock is called.
func (f *fake) block() (unblock func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	blocked := make(chan struct{})
	f.blocked = blocked
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.blocked = nil
		close(blocked)
	}
}

func (f *fake) fail(short int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing, f.short = err, short
}

// want fails the test unless exactly these writes were made since its last call.
func (f *fake) want(t *testing.T, writes ...string) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := fmt.Sprintf("%q", f.writes); got != fmt.Sprintf("%q", writes) {
		t.Errorf("written: %s, want %q", got, writes)
	}
	f.writes = nil
}

// in runs a test with a writer in a bubble.
func in(t *testing.T, test func(t *testing.T, w *Writer, f *fake)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		test(t, New(f), f)
	})
}

func add(w *Writer, text ...string) {
	for _, s := range text {
		w.Add([]byte(s+"\n"), Reservation{})
	}
}

const promised = 10 * time.Millisecond

func TestLinesAreWrittenTogetherWithinTenMilliseconds(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		add(w, "a", "b")
		f.want(t)
		time.Sleep(interval - 1)
		add(w, "c")
		f.want(t)
		time.Sleep(promised - interval + 1)
		f.want(t, "a\nb\nc\n")
		add(w, "d")
		time.Sleep(promised)
		f.want(t, "d\n")
		time.Sleep(time.Hour)
		f.want(t)
	})
}

func TestMuchIsWrittenWithoutWaiting(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		half := strings.Repeat("x", batch/2)
		add(w, half)
		f.want(t)
		add(w, half)
		f.want(t, half+"\n"+half+"\n")
	})
}

func TestPushWritesAtOnceWhenTheLogWasIdle(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		push := func(s string) []string {
			add(w, s)
			w.Push()
			return f.writes // without synctest.Wait
		}
		if got := push("a"); len(got) != 1 || got[0] != "a\n" {
			t.Errorf("an idle log has written %q when Push returns", got)
		}
		f.want(t, "a\n")
		if got := push("b"); len(got) != 0 {
			t.Errorf("a busy log has written %q when Push returns", got)
		}
		add(w, "c")
		time.Sleep(promised)
		f.want(t, "b\nc\n")
		w.Push() // no effect
		time.Sleep(promised)
		add(w, "d")
		if got := push("e"); len(got) != 1 || got[0] != "d\ne\n" {
			t.Errorf("an idle log has written %q when Push returns", got)
		}
	})
}

func TestOperationalLinesAreWrittenAtOnceAndInOrder(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		write := func(s string) {
			if n, err := io.WriteString(w, s); n != len(s) || err != nil {
				t.Error(n, err)
			}
		}
		add(w, "a")
		write("b\n")
		add(w, "c")
		write("d\n")
		f.want(t, "a\nb\n", "c\nd\n")
		unblock := f.block()
		write("e\n")
		synctest.Wait()
		add(w, "f")
		write("g\n")
		unblock()
		f.want(t, "e\n", "f\ng\n")
	})
}

// A sink that blocks does not block callers. Lines beyond the limit are counted, and the count is reported as soon as
// possible.
func TestABlockedSinkHoldsNobodyUp(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		w.OnLost(func(n uint64) { add(w, fmt.Sprint("lost ", n)) })
		unblock := f.block()
		add(w, "first")
		w.Push()
		time.Sleep(promised) // the first line is being written now
		line := strings.Repeat("x", limit/4-1)
		for range 7 {
			add(w, line)
			w.Push()
			_, _ = io.WriteString(w, "op\n")
		}
		if n := w.Lost(); n != 4 {
			t.Errorf("%d lines are lost", n)
		}
		time.Sleep(time.Hour)
		unblock()
		time.Sleep(promised)
		synctest.Wait()
		if got, fits := strings.Join(f.writes, ""), line+"\nop\n"; got != "first\n"+strings.Repeat(fits, 3)+strings.Repeat("op\n", 4)+"lost 4\n" {
			t.Errorf("written: %s", strings.ReplaceAll(got, line, "(line)"))
		}
	})
}

// A source of many lines leaves space for the others.
func TestOneSourceDoesNotTakeTheRoomOfAnother(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		unblock := f.block()
		add(w, "first")
		time.Sleep(promised)
		line := []byte(strings.Repeat("x", limit/64-1) + "\n")
		fill := func(c Reservation) (n int) {
			for w.Add(line, c) {
				n++
			}
			return n
		}
		var flooding, other, third Share
		for i, by := range []*Share{&flooding, &other, &third} {
			if n := fill(Reservation{Quarters: 2, By: by}); n != 16>>i {
				t.Errorf("source %d gets %d of the 32 places for what is cheap", i, n)
			}
		}
		if n := fill(Reservation{Quarters: 2}); n != 4 {
			t.Errorf("%d places are left for others", n)
		}
		if n := fill(Reservation{By: &third}); n != 14 {
			t.Errorf("what is not cheap gets %d of the 32 places that are left for that", n)
		}
		unblock()
		time.Sleep(promised)
		if !w.Add(line, Reservation{Quarters: 2, By: &flooding}) || !w.Add(line, Reservation{By: &other}) {
			t.Error("there is no room in an empty buffer")
		}
	})
}

// A sink that fails, even in the middle of a line, gets the rest when it works again: no line twice, none torn.
func TestAFailedWriteIsContinued(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		f.fail(2, errors.New("no space left on device"))
		add(w, "abc")
		time.Sleep(promised)
		f.want(t, "ab")
		f.fail(0, errors.New("no space left on device"))
		add(w, "def")
		w.Push()
		_, _ = io.WriteString(w, "op\n")
		f.want(t) // not once per line
		if err := w.Sync(); err == nil {
			t.Error("Sync does not say that nothing could be written")
		}
		time.Sleep(10*retry + retry/2)
		f.fail(0, nil)
		f.want(t, slices.Repeat([]string{""}, 11)...)
		time.Sleep(retry)
		f.want(t, "c\ndef\nop\n")
		if w.Lost() != 0 {
			t.Errorf("%d lines are lost", w.Lost())
		}
		add(w, "ghi")
		time.Sleep(promised)
		f.want(t, "ghi\n")
	})
}

func TestSyncWaitsForTheSinkButNotForEver(t *testing.T) {
	in(t, func(t *testing.T, w *Writer, f *fake) {
		if err := w.Sync(); err != nil {
			t.Error(err)
		}
		add(w, "a")
		if err := w.Sync(); err != nil || len(f.writes) != 1 {
			t.Errorf("%v, %q", err, f.writes)
		}
		unblock := f.block()
		add(w, "b")
		if err := w.Sync(); !errors.Is(err, errBlocked) {
			t.Errorf("a sink that blocks: %v", err)
		}
		time.AfterFunc(syncTimeout/2, unblock)
		add(w, "c")
		if err := w.Sync(); err != nil {
			t.Error(err)
		}
		f.want(t, "a\n", "b\n", "c\n")
	})
}

// With many concurrent writers, the sink gets each line whole and once, in the order of its writer.
func TestConcurrentLinesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := &fake{}
	w := New(f)
	var all sync.WaitGroup
	const sources, each = 8, 2000
	for s := range sources {
		all.Go(func() {
			var share Share
			for i := range each {
				line := fmt.Appendf(nil, "%d %d\n", s, i)
				if i%3 == 0 {
					_, _ = w.Write(line)
				} else {
					w.Add(line, Reservation{By: &share})
				}
				if i%5 == 0 {
					w.Push()
				}
				if i%500 == 0 {
					_ = w.Sync()
				}
			}
		})
	}
	all.Wait()
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	next := [sources]int{}
	for _, write := range f.writes {
		if !strings.HasSuffix(write, "\n") {
			t.Fatalf("a write ends with %q", write[max(0, len(write)-20):])
		}
		for line := range strings.Lines(write) {
			var s, i int
			if _, err := fmt.Sscan(line, &s, &i); err != nil || i != next[s] {
				t.Fatalf("%q, want line %d: %v", line, next[s], err)
			}
			next[s]++
		}
	}
	if w.Lost() != 0 || next[0] != each || next[sources-1] != each {
		t.Errorf("lost %d, written %v", w.Lost(), next)
	}
}

// A pipe that is full or whose reader is gone accepts no bytes without blocking; a pipe with space and a file do.
func TestTryWriteDoesNotWait(t *testing.T) {
	t.Parallel()
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer r.Close()
	sink, line := File(p), []byte("line\n")
	if n, ok, err := sink.TryWrite(line); n != len(line) || !ok || err != nil {
		t.Fatal(n, ok, err)
	}
	if _, ok, _ := sink.TryWrite(make([]byte, atomicWrite+1)); ok {
		t.Error("a write was tried that a pipe may take in parts")
	}
	full := bytes.Repeat([]byte("x"), atomicWrite)
	for n := 0; ; n++ {
		if _, ok, err := sink.TryWrite(full); err != nil || n > 1000 {
			t.Fatal(n, err)
		} else if !ok {
			break
		}
	}
	if _, ok, _ := sink.TryWrite(line); ok {
		t.Error("a full pipe takes a line")
	}
	r.Close()
	if _, ok, _ := sink.TryWrite(line); ok {
		t.Error("a pipe that nobody reads takes a line")
	}
	f, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, ok, err := File(f).TryWrite(bytes.Repeat(full, 4)); n != 4*len(full) || !ok || err != nil {
		t.Error(n, ok, err)
	}
}
