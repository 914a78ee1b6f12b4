package harness

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

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

// There are more slots while the cores are idle, fewer again while they are busy, and none from a measurement that is old.
func TestExtraSlots(t *testing.T) {
	t.Parallel()
	path, now := filepath.Join(t.TempDir(), "extra"), time.Now()
	var idle, total uint64
	var failure error
	for i, step := range []struct {
		idle    uint64 // in percent
		after   time.Duration
		failure error
		want    int
	}{
		{idle: 90, want: 0}, {idle: 90, after: idleWindow / 2, want: 0}, {idle: 90, after: idleWindow, want: 1}, {idle: 90, after: idleWindow / 2, want: 1},
		{idle: 30, after: idleWindow, want: 2}, {idle: 20, after: idleWindow, want: 2}, {idle: 60, after: idleWindow, want: 3}, {idle: 60, after: idleWindow, want: 3},
		{idle: 5, after: idleWindow, want: 2}, {idle: 5, after: idleWindow, want: 1}, {idle: 5, after: idleWindow, want: 0}, {idle: 5, after: idleWindow, want: 0},
		{idle: 60, after: idleWindow, want: 1}, {idle: 60, after: time.Minute, want: 0}, {idle: 60, after: idleWindow, want: 1},
		{idle: 60, after: idleWindow, failure: errors.New("no file"), want: 0},
	} {
		now, failure = now.Add(step.after), step.failure
		if step.after >= idleWindow {
			idle, total = idle+step.idle, total+100
		}
		got, err := extraSlots(path, 3, now, func() (uint64, uint64, error) { return idle + 1, total + 1, failure })
		if err != nil || got != step.want {
			t.Errorf("step %d: %d extra slots, %v; want %d", i, got, err, step.want)
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
