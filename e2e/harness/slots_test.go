package harness

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A slot belongs to one test at a time, and is free again when the test ends.
func TestSlots(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0")
	held, err := trySlot(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trySlot(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("a slot that is taken: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := trySlot(path)
	if err != nil {
		t.Fatalf("a slot that is free: %v", err)
	}
	again.Close()
}

// A test uses the slot of its parent, because it could otherwise wait for itself, but not that of a sibling.
func TestSlotOfAParent(t *testing.T) {
	t.Parallel()
	holders.mu.Lock()
	holders.names = map[string]bool{"TestA/b": true}
	holders.mu.Unlock()
	for test, want := range map[string]bool{"TestA": false, "TestA/b": true, "TestA/b/c": true, "TestA/bc": false, "TestA/d": false} {
		if got := holdsSlot(test); got != want {
			t.Errorf("%s holds a slot: %v", test, got)
		}
	}
}

// Labs beyond the usual number start while the cores are idle, and no others.
func TestIdleMeter(t *testing.T) {
	t.Parallel()
	var idle, total uint64
	var failure error
	m := newIdleMeter(func() (uint64, uint64, error) { return idle, total, failure })
	for _, step := range []struct {
		idle, busy uint64
		failure    error
		want       bool
	}{
		{idle: 10, busy: 90, want: false},
		{idle: 60, busy: 40, want: true},
		{idle: 25, busy: 75, want: false},
		{idle: 100, failure: errors.New("no file"), want: false},
	} {
		idle, total, failure = idle+step.idle, total+step.idle+step.busy, step.failure
		m.at = m.at.Add(-idleWindow)
		if got := m.idle(); got != step.want {
			t.Errorf("%d of %d idle, error %v: idle %v", step.idle, step.idle+step.busy, step.failure, got)
		}
	}
	if idle, total, err := readCPUTimes(); err != nil || total == 0 || idle > total {
		t.Errorf("the machine's own times: %d of %d, %v", idle, total, err)
	}
}

func TestFirstDifference(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, want string }{
		{"a\nb", "a\nb", ""},
		{"a\nb", "a\nc", `"c", not "b"`},
		{"a", "a\nb", `"b", not ""`},
	} {
		if got := firstDifference(c.before, c.after); got != c.want {
			t.Errorf("%q and %q: %s", c.before, c.after, got)
		}
	}
}
