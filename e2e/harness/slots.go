package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slotsVariable is the environment variable with the number of labs used at a time by all test binaries on this
// machine. The default is two per core, and up to four more per core while the cores are idle, since many tests only wait.
const slotsVariable = "GATEWAY_TEST_SLOTS"

// slotsDir contains a lock file for each slot.
const slotsDir = "/run/boxgate-test-slots"

// slotPace is the interval at which a waiting test looks for a free slot.
const slotPace = 20 * time.Millisecond

// holders are the tests of this process with a slot, by name.
var holders struct {
	mu     sync.Mutex
	names  map[string]bool
	waited time.Duration // total of all tests
}

// TakeSlot waits for a free slot and holds it until the test ends. A test that holds a slot, or whose parent does,
// takes no second one: two such tests could wait for each other.
func TakeSlot(t *testing.T) {
	t.Helper()
	if holdsSlot(t.Name()) {
		return
	}
	began := time.Now()
	slot, err := awaitSlot()
	if err != nil {
		t.Fatalf("taking a slot for a lab: %v", err)
	}
	noteHolder(t, time.Since(began), slot)
}

// noteHolder records the slots of a test, and frees them when it ends.
func noteHolder(t *testing.T, waited time.Duration, slots ...*os.File) {
	holders.mu.Lock()
	defer holders.mu.Unlock()
	holders.waited += waited
	if holders.names == nil {
		holders.names = map[string]bool{}
	}
	holders.names[t.Name()] = true
	t.Cleanup(func() {
		holders.mu.Lock()
		defer holders.mu.Unlock()
		delete(holders.names, t.Name())
		for _, slot := range slots {
			slot.Close()
		}
	})
}

// TakeAllSlots waits until no other lab is used on this machine, and holds all slots until the test ends, for tests
// that measure. The test must not be parallel and must not hold a slot.
func TakeAllSlots(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(slotsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var slots []*os.File
	base, extra := slotCount()
	for n := range base + extra {
		slot, err := os.OpenFile(filepath.Join(slotsDir, strconv.Itoa(n)), os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			slots = append(slots, slot)
			err = awaitLock(slot) // flock wakes this before tests that poll for a slot
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	noteHolder(t, time.Since(began), slots...)
}

// awaitLock waits for the lock of a slot.
func awaitLock(slot *os.File) error {
	for {
		if err := unix.Flock(int(slot.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) { // interrupted by a signal of the Go scheduler
			return err
		}
	}
}

// holdsSlot reports whether a test or one of its parents holds a slot.
func holdsSlot(test string) bool {
	holders.mu.Lock()
	defer holders.mu.Unlock()
	for {
		if holders.names[test] {
			return true
		}
		i := strings.LastIndexByte(test, '/')
		if i < 0 {
			return false
		}
		test = test[:i]
	}
}

// looking is held by the one test of this process that polls for a slot. If all waiting tests polled, they would use
// some hundredths of a core.
var looking sync.Mutex

// awaitSlot returns the locked file of a slot. Closing it frees the slot.
func awaitSlot() (*os.File, error) {
	looking.Lock()
	defer looking.Unlock()
	if err := os.MkdirAll(slotsDir, 0o700); err != nil {
		return nil, err
	}
	base, most := slotCount()
	for ; ; time.Sleep(slotPace) {
		extra, err := extraSlots(filepath.Join(slotsDir, "extra"), most, time.Now(), readCPUTimes)
		if err != nil {
			return nil, err
		}
		for i := range base + extra {
			slot, err := trySlot(filepath.Join(slotsDir, strconv.Itoa(i)))
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return slot, err
			}
		}
	}
}

// trySlot locks a slot. It returns EWOULDBLOCK if the slot is in use.
func trySlot(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// slotCount returns the number of slots, and how many more there may be while the cores are idle.
func slotCount() (base, most int) {
	if n, err := strconv.Atoi(os.Getenv(slotsVariable)); err == nil && n > 0 {
		return n, 0
	}
	return 2 * runtime.NumCPU(), 4 * runtime.NumCPU()
}

// idleWindow is the shortest time over which the idle time of the cores is measured. It is long enough for a lab that an extra slot
// started to show in the next measurement. After staleWindow without a test that waits, the number of extra slots starts at 0 again.
const (
	idleWindow  = 700 * time.Millisecond
	staleWindow = 10 * time.Second
)

// extraSlots returns the number of extra slots, at most most. Each measurement increases it by one if the cores of the machine were idle
// for more than a quarter of the time, and decreases it by one if for less than a tenth. All processes share it in a file, with the
// last measurement. read returns the idle time of all cores and the time altogether; if it fails, the cores are busy.
func extraSlots(path string, most int, now time.Time, read func() (idle, total uint64, err error)) (n int, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := awaitLock(f); err != nil {
		return 0, err
	}
	var at int64
	var idleBefore, totalBefore uint64
	if _, err := fmt.Fscan(f, &at, &idleBefore, &totalBefore, &n); err != nil { // new, or of an interrupted process
		at, n = 0, 0
	}
	since := now.Sub(time.Unix(0, at))
	if since >= 0 && since < idleWindow {
		return min(n, most), nil
	}
	idle, total, err := read()
	quiet := idle - idleBefore
	switch passed := total - totalBefore; {
	case since < 0 || since > staleWindow || total <= totalBefore || err != nil:
		n = 0
	case 4*quiet > passed:
		n = min(n+1, most)
	case 10*quiet < passed:
		n = max(min(n, most)-1, 0)
	}
	text := fmt.Appendln(nil, now.UnixNano(), idle, total, n)
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	_, err = f.WriteAt(text, 0)
	return n, err
}

// readCPUTimes returns the idle time of all cores and the time altogether, in clock ticks since boot (proc_stat(5)).
func readCPUTimes() (idle, total uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, field := range fields[1:9] { // the rest, the time of guests, is part of the user time
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat begins with %q", line)
		}
		total += n
		if i == 3 || i == 4 { // idle, and idle with I/O outstanding
			idle += n
		}
	}
	return idle, total, nil
}
