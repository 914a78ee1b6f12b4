package archive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/audit/lines"
	"boxgate/policy"
)

// history is a store that a log writes to.
type history struct {
	*Store
	t   testing.TB
	w   *lines.Writer
	log *audit.Log
	n   int
}

func openHistory(t testing.TB, dir string, size int64) *history {
	t.Helper()
	s, err := Open(dir, size, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := lines.New(s)
	return &history{s, t, w, audit.New(audit.Options{History: w, OnHistoryDrop: s.RecordLoss}), 0}
}

// flood records so many bytes about boxes in turn, each decision with its own long path.
func (h *history) flood(bytes int, boxes ...string) {
	h.t.Helper()
	for written := 0; written < bytes; h.n++ {
		e := decision(boxes[h.n%len(boxes)], "flood.example.com", time.Now())
		e.Path = fmt.Sprintf("/%s/%d", strings.Repeat("x", 450), h.n)
		h.log.Record(e)
		written += 700
		if h.n%256 == 0 {
			h.sync()
		}
	}
	h.sync()
}

func (h *history) sync() {
	h.t.Helper()
	if err := h.w.Sync(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) record(box, name string) {
	h.t.Helper()
	h.log.Record(decision(box, name, time.Now()))
	h.sync()
}

// TestNoBoxPushesOutTheOthers checks that decisions about a box within its share are kept, in order, despite other
// boxes, and that the history reports for which boxes it is incomplete.
func TestNoBoxPushesOutTheOthers(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	dir, began := t.TempDir(), time.Now()
	h := openHistory(t, dir, size)
	var want []string
	quiet := func() {
		want = append(want, fmt.Sprintf("q%d.example.com", len(want)))
		h.record("quiet", want[len(want)-1])
	}
	h.record("loud1", "theft.example.com")
	for round := range 20 {
		quiet()
		if got := search(t, h.Store, Filter{Box: "loud1", Host: "theft.example.com"}); round < 2 && len(got) != 1 {
			t.Error("without a flood something is gone")
		}
		h.flood(1<<20, "loud1", "loud2", "loud3")
		if sum := onDisk(t, dir); sum > size {
			t.Fatalf("%d bytes", sum)
		}
	}
	check := func() {
		t.Helper()
		if got := search(t, h.Store, Filter{Box: "quiet"}); !slices.Equal(got, want) {
			t.Errorf("of the quiet box there are %v", got)
		}
		if at := h.CompleteSince("quiet"); at.After(began.Add(time.Minute)) || at.After(time.Now().Add(-time.Millisecond)) {
			t.Errorf("of the quiet box the history is whole from %v", at)
		}
		since := h.CompleteSince("loud1")
		if since.Before(began) || !h.CompleteSince("").Before(time.Now()) || h.CompleteSince("").Before(since) || !h.CompleteSince("quiet").Before(since) {
			t.Errorf("the history is whole of a loud box from %v, of all from %v, of the quiet one from %v", since, h.CompleteSince(""), h.CompleteSince("quiet"))
		}
		if early := search(t, h.Store, Filter{Box: "loud1", Host: "theft.example.com"}); len(early) != 0 {
			t.Error("a box has more than its share") // otherwise the test proves nothing
		}
	}
	check()
	since := h.CompleteSince("loud1")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = openHistory(t, dir, size)
	defer h.Close()
	if h.CompleteSince("loud1") != since && !h.CompleteSince("loud1").Equal(since) {
		t.Errorf("after a restart the history of a loud box is whole from %v, before from %v", h.CompleteSince("loud1"), since)
	}
	check()
	h.flood(6<<20, "loud1")
	check()
}

// TestSharesOfManyBoxes checks that boxes beyond their share keep their latest decisions.
func TestSharesOfManyBoxes(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	h := openHistory(t, t.TempDir(), size)
	defer h.Close()
	var boxes []string
	for i := range 8 {
		boxes = append(boxes, fmt.Sprintf("b%d", i))
		h.flood(200<<10, boxes[i]) // more than an eighth of a quarter
	}
	h.flood(12<<20, "loud")
	for _, box := range boxes {
		n, last := 0, 0
		err := h.Search(t.Context(), Filter{Box: policy.BoxID(box)}, func(e audit.Event) error {
			at := 0
			if _, err := fmt.Sscanf(e.Path[strings.LastIndexByte(e.Path, '/'):], "/%d", &at); err != nil || n > 0 && at != last+1 {
				t.Errorf("%s: %d comes after %d: %v", box, at, last, err)
			}
			n, last = n+1, at
			return nil
		})
		if bytes := n * 700; err != nil || bytes < size/4/9/2 || n >= 200<<10/700 {
			t.Errorf("%s has %d decisions: %v", box, n, err)
		}
		if h.CompleteSince(policy.BoxID(box)).IsZero() || !h.CompleteSince(policy.BoxID(box)).Before(time.Now()) {
			t.Error(h.CompleteSince(policy.BoxID(box)))
		}
	}
}

// TestSearchWhileFilesAreMoved checks that every decision is found exactly once.
func TestSearchWhileFilesAreMoved(t *testing.T) {
	t.Parallel()
	h := openHistory(t, t.TempDir(), 2<<20)
	defer h.Close()
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("q%d.example.com", i))
		h.record("quiet", want[i])
		h.flood(8<<10, "loud")
	}
	var reading sync.WaitGroup
	done := make(chan struct{})
	reading.Go(func() {
		for {
			if got := search(t, h.Store, Filter{Box: "quiet"}); !slices.Equal(got, want) {
				t.Errorf("found %v", got)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	h.flood(16<<20, "loud")
	close(done)
	reading.Wait()
}

// TestHistoryOutlivesACrashWhileMoving checks that every decision is present once, wherever a crash interrupts the move
// of a file.
func TestHistoryOutlivesACrashWhileMoving(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := openHistory(t, dir, 1<<20)
	for i := range 40 {
		h.record("quiet", fmt.Sprintf("q%d.example.com", i))
		h.flood(40<<10, "loud")
	}
	before := copyTree(t, dir)
	oldest := h.main.Segments()[0]
	for h.main.Segments()[0].Number == oldest.Number {
		h.flood(700, "loud")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		crashed string
		from    string // first part known as moved
	}{{"before it was noted", before}, {"before the file was removed", dir}} {
		crashed := copyTree(t, dir)
		for _, name := range []string{oldest.Name(), filepath.Join(keptDir, wholeFile)} {
			from := before
			if name != oldest.Name() {
				from = c.from
			}
			data, err := os.ReadFile(filepath.Join(from, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(crashed, name), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		again := openHistory(t, crashed, 1<<20)
		got := search(t, again.Store, Filter{Box: "quiet"})
		if len(got) != 40 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 40 {
			t.Errorf("%s: found %v", c.crashed, got)
		}
		again.record("quiet", "later.example.com")
		if got := search(t, again.Store, Filter{Box: "quiet"}); len(got) != 41 || got[40] != "later.example.com" {
			t.Errorf("%s: then found %v", c.crashed, got)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

func copyTree(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestHistoryWithoutItsNotes checks that the history then counts as complete only from now on.
func TestHistoryWithoutItsNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := openHistory(t, dir, 1<<20)
	h.flood(4<<20, "loud")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, keptDir, wholeFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h = openHistory(t, dir, 1<<20)
	defer h.Close()
	if h.CompleteSince("quiet").Before(began) {
		t.Error(h.CompleteSince("quiet"))
	}
}

// TestWhatTheDiskDoesNotTakeIsMissing checks that the history is incomplete for the box whose decisions were dropped
// while the disk failed.
func TestWhatTheDiskDoesNotTakeIsMissing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "history")
	h := openHistory(t, dir, 64<<20)
	defer h.Close()
	if err := os.RemoveAll(dir); err != nil { // no file can be created
		t.Fatal(err)
	}
	before := h.CompleteSince("")
	for i := range 60_000 { // more than fits into memory
		h.log.Record(decision("b1", fmt.Sprintf("n%d.example.com", i), time.Now()))
	}
	if h.w.Lost() == 0 || !h.CompleteSince("b1").After(before) || h.CompleteSince("b2").After(before) {
		t.Errorf("%d are lost, and the history is whole from %v, of another box from %v", h.w.Lost(), h.CompleteSince("b1"), h.CompleteSince("b2"))
	}
}

// TestLossesAreBounded checks that boxes with losses are remembered individually up to a limit.
func TestLossesAreBounded(t *testing.T) {
	t.Parallel()
	var w completeness
	if err := w.load(filepath.Join(t.TempDir(), wholeFile)); err != nil {
		t.Fatal(err)
	}
	base := time.Now()
	for i := range 3 * maxLosers {
		w.addLosses(map[policy.BoxID]time.Time{policy.BoxID(fmt.Sprint(i)): base.Add(time.Duration(i) * time.Second)})
	}
	if len(w.lost) > maxLosers {
		t.Error(len(w.lost))
	}
	for i := range 3 * maxLosers {
		if at := base.Add(time.Duration(i) * time.Second); w.completeSince(policy.BoxID(fmt.Sprint(i))).Before(at) {
			t.Fatalf("of box %d the history is said to be whole from before its loss", i)
		}
	}
}

// TestOldDecisionsGo checks that files whose last decision is too old are removed, including copies, and that the
// history counts as complete from the oldest remaining file on.
func TestOldDecisionsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := openHistory(t, dir, 1<<20)
	h.record("quiet", "early.example.com")
	h.flood(3<<20, "loud")
	if len(search(t, h.Store, Filter{Box: "quiet"})) != 1 {
		t.Fatal("within the size it is gone already") // otherwise the test proves nothing
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	before := onDisk(t, dir)
	for end := time.Now().Add(time.Minute); ; {
		s, err := Open(dir, 1<<20, time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		if got := search(t, s, Filter{Box: "quiet"}); len(got) == 0 {
			if whole := s.CompleteSince("quiet"); whole.IsZero() || whole.After(time.Now()) {
				t.Errorf("it counts as whole from %v", whole)
			}
			if left := onDisk(t, dir); left >= before/4 {
				t.Errorf("of %d bytes %d are left", before, left)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if err := s.Close(); err != nil || time.Now().After(end) {
			t.Fatalf("old decisions are still there: %v", err)
		}
	}
}

// TestManyBoxesShareWhatIsKept checks that when more boxes reduce the shares, the oldest decisions of each are dropped
// and the total does not grow.
func TestManyBoxesShareWhatIsKept(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	dir := t.TempDir()
	h := openHistory(t, dir, size)
	defer h.Close()
	for i := range 60 {
		box := fmt.Sprintf("b%d", i)
		h.flood(60<<10, box)
		h.flood(100<<10, "loud")
		if sum := onDisk(t, dir); sum > size {
			t.Fatalf("%d bytes of %d", sum, size)
		}
	}
	h.flood(4<<20, "loud")
	for i := range 60 {
		box := policy.BoxID(fmt.Sprintf("b%d", i))
		switch n := len(search(t, h.Store, Filter{Box: box})); {
		case n == 0:
			t.Errorf("nothing is left of %s", box)
		case n < 60<<10/700 && !h.CompleteSince(box).After(time.Time{}):
			t.Errorf("of %s there are %d decisions, and it counts as whole", box, n)
		}
	}
}

// TestReleasedHistoryIsWrittenByAnother checks that writing after a release is an error and changes nothing.
func TestReleasedHistoryIsWrittenByAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := openHistory(t, dir, 1<<20)
	h.record("b1", "api.example.com")
	if n, ok, err := h.TryWrite([]byte("{}\n")); n != 0 || ok || err != nil {
		t.Errorf("a line was written beside the log: %d %v %v", n, ok, err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	before := onDisk(t, dir)
	if n, err := h.Store.Write([]byte("{}\n")); n != 0 || err == nil || onDisk(t, dir) != before {
		t.Errorf("%d bytes were written: %v", n, err)
	}
	again := openHistory(t, dir, 1<<20)
	defer again.Close()
	if got := search(t, again.Store, Filter{}); len(got) != 1 {
		t.Errorf("the next finds %v", got)
	}
}

// TestRoomIsAskedFor checks that CheckSpace is called before each write if space is low, and otherwise for several writes
// together.
func TestRoomIsAskedFor(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), 64<<20, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	asked, left := 0, int64(64<<20)
	s.CheckSpace = func(n int64) error {
		asked++
		if n > left {
			return errFull
		}
		return nil
	}
	line := []byte(strings.Repeat("x", 1<<10-1) + "\n")
	for range 4 << 10 {
		if _, err := s.Write(line); err != nil {
			t.Fatal(err)
		}
		left -= int64(len(line))
	}
	if asked > 2<<10 || asked < 4 {
		t.Errorf("asked %d times in %d writes", asked, 4<<10)
	}
	written := int64(0)
	for left = 1<<20 + 1<<19; ; left -= int64(len(line)) {
		if _, err := s.Write(line); err != nil {
			break
		}
		written += int64(len(line))
	}
	if left >= int64(len(line)) || left < 0 || written > 1<<20+1<<19 {
		t.Errorf("%d bytes were written, and %d were left", written, left)
	}
}

var errFull = errors.New("full")
