package archive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/audit/lines"
	"boxgate/policy"
	"boxgate/policy/name"
)

func record(t testing.TB, dir string, size int64, events ...audit.Event) *Store {
	t.Helper()
	s, err := Open(dir, size, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := lines.New(s)
	log := audit.New(audit.Options{History: w})
	for _, e := range events {
		log.Record(e)
	}
	log.Flush()
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	return s
}

func search(t testing.TB, s *Store, f Filter) (names []string) {
	t.Helper()
	err := s.Search(t.Context(), f, func(e audit.Event) error {
		names = append(names, e.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func decision(box, label string, at time.Time) audit.Event {
	return audit.Event{Box: policy.BoxID(box), Name: label, Time: at, Stage: policy.StageHTTP, Verdict: policy.Allow, Reason: name.ReasonAllowedDomain, Method: "GET", Path: "/"}
}

// TestDecisionsAreFoundAfterARestart searches by box, time, host and reason, also after a crash has cut the last line
// short.
func TestDecisionsAreFoundAfterARestart(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	denied := decision("b2", "evil.example.net", now.Add(-time.Hour))
	denied.Verdict, denied.Reason = policy.Decision{}.Verdict, name.ReasonNotAllowed
	s := record(t, dir, 1<<20, decision("b1", "api.example.com", now.Add(-3*time.Hour)), decision("b1", "example.com", now.Add(-2*time.Hour)), denied)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"level":"info","time":"2026-`)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	s = record(t, dir, 1<<20, decision("b1", "later.example.com", now))
	defer s.Close()
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{}, "[api.example.com example.com evil.example.net later.example.com]"},
		{Filter{Box: "b2"}, "[evil.example.net]"},
		{Filter{Denied: true}, "[evil.example.net]"},
		{Filter{Reason: name.ReasonNotAllowed}, "[evil.example.net]"},
		{Filter{Host: "*.example.com"}, "[api.example.com later.example.com]"},
		{Filter{Host: "EXAMPLE.com"}, "[example.com]"},
		{Filter{Since: now.Add(-150 * time.Minute), Until: now.Add(-30 * time.Minute)}, "[example.com evil.example.net]"},
		{Filter{Box: "b3"}, "[]"},
	} {
		if got := fmt.Sprint(search(t, s, c.f)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.f, got, c.want)
		}
	}
}

// TestHistoryIsBoundedByItsSize checks the size at every moment, and that the latest decisions are kept.
func TestHistoryIsBoundedByItsSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const size = 1 << 20
	s, err := Open(dir, size, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	line := []byte(`{"time":"2026-01-02T15:04:05Z","name":"x` + string(make([]byte, 0)) + `.example","box":"b1","stage":"http","verdict":"allow","reason":"allow_all"}` + "\n")
	batch := make([]byte, 0, 60<<10)
	for len(batch)+len(line) < cap(batch) {
		batch = append(batch, line...)
	}
	for range 60 {
		if n, err := s.Write(batch); n != len(batch) || err != nil {
			t.Fatal(n, err)
		}
		var sum int64
		if sum = onDisk(t, dir); sum > size {
			t.Fatalf("%d bytes", sum)
		}
	}
	if (s.main.Size() + s.kept.Size()) < size/2 {
		t.Errorf("only %d bytes are kept", (s.main.Size() + s.kept.Size()))
	}
	if n, err := s.Write(make([]byte, size+1)); n != 0 || err == nil {
		t.Error("more than there is room for was written")
	}
}

// onDisk returns the size of a history in bytes.
func onDisk(t testing.TB, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestADiskThatFailsLosesLinesAndNoTime checks that recording does not wait and losses are counted, and that a disk
// that works again gets the rest.
func TestADiskThatFailsLosesLinesAndNoTime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "history")
	s, err := Open(dir, 64<<20, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.RemoveAll(dir); err != nil { // no file can be created
		t.Fatal(err)
	}
	w := lines.New(s)
	log := audit.New(audit.Options{History: w})
	for i := range 60_000 { // more than fits into memory
		e := decision("b1", fmt.Sprintf("n%d.example.com", i), time.Now())
		log.Record(e)
	}
	if w.Lost() == 0 {
		t.Error("nothing is counted as lost")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); w.Sync() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("a disk that works again takes nothing")
		}
	}
	if len(search(t, s, Filter{})) == 0 {
		t.Error("nothing was kept")
	}
}

// TestHistoryLeavesTheReserve checks that on a disk with only the reserve left, new lines are lost and existing ones
// stay.
func TestHistoryLeavesTheReserve(t *testing.T) {
	t.Parallel()
	s := record(t, t.TempDir(), 1<<20, decision("b1", "before.example.com", time.Now()))
	defer s.Close()
	s.CheckSpace = func(int64) error { return errors.New("full") }
	if n, err := s.Write([]byte("{}\n")); n != 0 || err == nil {
		t.Errorf("%d bytes were written: %v", n, err)
	}
	if names := search(t, s, Filter{}); len(names) != 1 {
		t.Errorf("found %v", names)
	}
	s.CheckSpace = func(int64) error { return nil }
	if n, err := s.Write([]byte("{}\n")); n != 3 || err != nil {
		t.Errorf("with room again %d bytes were written: %v", n, err)
	}
}
