package trail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/audit/segments"
	"boxgate/internal/nightly"
)

func open1(t testing.TB, dir string, opts Options) *Trail {
	t.Helper()
	if opts.Size == 0 {
		opts.Size = 1 << 20
	}
	tr, err := Open(dir, opts, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func add(t testing.TB, tr *Trail, n int) {
	t.Helper()
	for range n {
		if _, err := tr.Append(Entry{Kind: Call, Key: "ci", Route: "POST /v2/box", Change: Change{json.RawMessage(`{"name":"a<b é"}`)}}); err != nil {
			t.Fatal(err)
		}
	}
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func edit(t testing.TB, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTamperingIsSeen checks that Verify reports everything that is changed, inserted, removed or cut off, from one
// byte to whole files.
func TestTamperingIsSeen(t *testing.T) {
	t.Parallel()
	lines := func(data []byte) [][]byte {
		return slices.Collect(bytes.Lines(data))
	}
	for name, change := range map[string]func([]byte) []byte{
		"a byte":        func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"a key":         func(b []byte) []byte { return bytes.Replace(b, []byte(`"ci"`), []byte(`"me"`), 1) },
		"an entry":      func(b []byte) []byte { l := lines(b); return bytes.Join(append(l[:5:5], l[6:]...), nil) },
		"the order":     func(b []byte) []byte { l := lines(b); l[4], l[5] = l[5], l[4]; return bytes.Join(l, nil) },
		"one twice":     func(b []byte) []byte { l := lines(b); return bytes.Join(append(l[:5:5], l[4:]...), nil) },
		"the end":       func(b []byte) []byte { return bytes.Join(lines(b)[:15], nil) },
		"all":           func([]byte) []byte { return nil },
		"the beginning": func(b []byte) []byte { return bytes.Join(lines(b)[5:], nil) },
		"a new hash": func(b []byte) []byte {
			l := lines(b)
			e, _, err := openLine(bytes.TrimSuffix(l[7], []byte("\n")))
			if err != nil {
				t.Fatal(err)
			}
			e.Key = "me"
			l[7], _, _ = e.seal()
			return bytes.Join(l, nil)
		},
	} {
		dir := t.TempDir()
		tr := open1(t, dir, Options{})
		add(t, tr, 19)
		head := tr.Head()
		if r, err := Verify(dir, head); err != nil || len(r.Problems) > 0 || r.Entries != 20 || r.Head != head {
			t.Fatal(r, err)
		}
		edit(t, files(t, dir)[0], change)
		if r, err := Verify(dir, head); err != nil || len(r.Problems) == 0 {
			t.Errorf("%s: %+v %v", name, r, err)
		}
		// Continuing does not hide it either.
		tr.Close()
		next := open1(t, dir, Options{})
		add(t, next, 30)
		if r, err := Verify(dir, head); err != nil || len(r.Problems) == 0 {
			t.Errorf("%s, and more after it: %+v %v", name, r, err)
		}
	}
}

// TestWhatIsTooMuchIsRemoved checks that whole files are removed and that this is recorded; the removal of other files
// is detected.
func TestWhatIsTooMuchIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr := open1(t, dir, Options{Size: 128 << 10})
	add(t, tr, 1500)
	if size := tr.files.Size(); size > 160<<10 || len(files(t, dir)) < 3 {
		t.Errorf("%d bytes in %d files", size, len(files(t, dir)))
	}
	r, err := Verify(dir, tr.Head())
	if err != nil || len(r.Problems) > 0 || r.First == 1 {
		t.Fatalf("%+v %v", r, err)
	}
	if err := os.Remove(files(t, dir)[0]); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir, tr.Head()); err != nil || len(r.Problems) == 0 {
		t.Errorf("the oldest file is gone: %+v %v", r, err)
	}
}

// TestNoKeyPushesOutTheOthers checks that a key that calls as often as it can, and callers without a key, displace only
// their own entries, however often files are removed. The trail stays within its limits, verifiable, and records whose
// entries are gone.
func TestNoKeyPushesOutTheOthers(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	dir := t.TempDir()
	tr := open1(t, dir, Options{Size: size, Age: time.Hour})
	say := func(e Entry) {
		t.Helper()
		if _, err := tr.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	say(Entry{Kind: Call, KeyID: "key_old", Key: "old", Time: time.Now().Add(-2 * time.Hour)})
	want := map[string]int{}
	for _, key := range []string{"operator", "key_admin", "key_quiet"} {
		for i := range 20 {
			route := key + string(rune('a'+i))
			say(Entry{Kind: Call, KeyID: key, Key: key, Route: route, Box: "box", Change: Change{json.RawMessage(`{"x":"<é>"}`)}})
			want[route] = 1
		}
	}
	loud := nightly.Size(3000, 8000)
	for i := range loud {
		say(Entry{Kind: Answer, KeyID: "key_loud", Key: "operator", Route: "POST", Change: Change{json.RawMessage(`{"x":{"key_id":"operator"}}`)}, Status: 200})
		if i%4 == 0 {
			say(Entry{Kind: Refused, Route: "POST", Status: 401})
		}
		if i == loud*5/8 { // the shares are counted again
			tr.Close()
			tr = open1(t, dir, Options{Size: size, Age: time.Hour})
		}
	}
	if got := tr.files.Size(); got > size*5/4 {
		t.Errorf("%d bytes", got)
	}
	if r, err := Verify(dir, tr.Head()); err != nil || len(r.Problems) > 0 || r.First == 1 {
		t.Fatalf("%+v %v", r, err)
	}
	notes := ""
	read := func(f Filter) (routes map[string]int) {
		routes = map[string]int{}
		if err := tr.Read(t.Context(), f, false, func(line []byte) error {
			e, _, err := openLine(line)
			if err != nil {
				return err
			}
			if e.Kind == Removed {
				notes += e.Note
			}
			if o := e.Origin(); o.KeyID != "" && o.KeyID != "key_loud" {
				routes[o.Route]++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return routes
	}
	if got := read(Filter{}); !maps.Equal(got, want) {
		t.Errorf("there are %v", got)
	}
	if !strings.Contains(notes, "key_loud") || !strings.Contains(notes, "without a valid key") || strings.Contains(notes, "operator") {
		t.Errorf("the notes say %q", notes[:min(len(notes), 500)])
	}
	if got := read(Filter{Key: "key_quiet", Box: "box", Since: time.Now().Add(-time.Hour)}); len(got) != 20 {
		t.Errorf("of one key: %v", got)
	}
}

// TestRemovalThatFailsIsRepeated checks that after any number of failed removals of the oldest file, the trail returns
// to its limits and has all entries of keys within their share.
func TestRemovalThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	const size = 128 << 10
	dir := t.TempDir()
	tr := open1(t, dir, Options{Size: size})
	for i := range 20 {
		if _, err := tr.Append(Entry{Kind: Call, KeyID: "key_quiet", Route: string(rune('a' + i))}); err != nil {
			t.Fatal(err)
		}
	}
	loud := func(n int) (err error) {
		for range n {
			if _, err = tr.Append(Entry{Kind: Call, KeyID: "key_loud", Route: "POST"}); err != nil {
				return err
			}
		}
		return nil
	}
	for tr.files.Size() <= size {
		if err := loud(1); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.countLocked(); err != nil {
		t.Fatal(err)
	}
	oldest := files(t, dir)[0]
	away := oldest + ".away"
	if err := errors.Join(os.Rename(oldest, away), os.Symlink(oldest, oldest)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if loud(1) == nil {
			t.Fatal("a file that cannot be opened was removed")
		}
	}
	if err := os.Rename(away, oldest); err != nil {
		t.Fatal(err)
	}
	if err := loud(nightly.Size(700, 2000)); err != nil {
		t.Fatal(err)
	}
	if got := tr.files.Size(); got > size*5/4 {
		t.Errorf("%d bytes", got)
	}
	routes := map[string]int{}
	if err := tr.Read(t.Context(), Filter{Key: "key_quiet"}, false, func(line []byte) error {
		e, _, err := openLine(line)
		routes[e.Origin().Route]++
		return err
	}); err != nil || len(routes) != 20 || slices.Max(slices.Collect(maps.Values(routes))) > 1 {
		t.Errorf("of the quiet key there are %v: %v", routes, err)
	}
}

// TestShareIsWhatTheOthersLeave checks segments.Share.
func TestShareIsWhatTheOthersLeave(t *testing.T) {
	t.Parallel()
	for want, held := range map[int64]map[string]int64{
		90:            {"a": 1000, "b": 10},
		45:            {"a": 1000, "b": 10, "c": 50},
		33:            {"a": 1000, "b": 1000, "c": 1000},
		100:           {"a": 1000},
		math.MaxInt64: {"a": 50, "b": 50},
	} {
		if got := segments.Share(slices.Collect(maps.Values(held)), 100); got != want {
			t.Errorf("%v: %d", held, got)
		}
	}
}

// TestTrailHoldsUnderKill kills a process that writes entries. All acknowledged entries are present, the chain is
// intact, and it can be continued.
func TestTrailHoldsUnderKill(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("TRAIL_DIR"); dir != "" {
		tr := open1(t, dir, Options{})
		for {
			seq, err := tr.Append(Entry{Kind: Call})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = os.Stdout.WriteString("\n" + json.Number(jsonOf(seq)).String() + "\n")
		}
	}
	dir := t.TempDir()
	for range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTrailHoldsUnderKill$")
		cmd.Env = append(os.Environ(), "TRAIL_DIR="+dir)
		var out bytes.Buffer
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for out.Len() < 400 {
			n, err := pipe.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(buf[:n])
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		told := strings.Fields(out.String()[:strings.LastIndexByte(out.String(), '\n')])
		var last uint64
		if err := json.Unmarshal([]byte(told[len(told)-1]), &last); err != nil {
			t.Fatal(told[len(told)-1], err)
		}
		r, err := Verify(dir, Head{})
		if err != nil || len(r.Problems) > 0 || r.Head.Seq < last {
			t.Fatalf("told of %d: %+v %v", last, r, err)
		}
		// A crash of the machine can leave an incomplete line.
		edit(t, files(t, dir)[0], func(b []byte) []byte { return append(b, `{"seq":9`...) })
	}
	tr := open1(t, dir, Options{})
	if r, err := Verify(dir, tr.Head()); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
}

func jsonOf(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// TestAFullDiskIsAnError checks that no part of the failed entry stays in the trail.
func TestAFullDiskIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr := open1(t, dir, Options{})
	add(t, tr, 1)
	tr.Close() // so that the next entry begins a file, which cannot be created
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	head := tr.Head()
	if _, err := tr.Append(Entry{Kind: Call}); err == nil || tr.Head() != head {
		t.Error("an entry that is nowhere was written", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	add(t, tr, 1)
}

// TestReleaseAnswersWhatGoesOn checks that a call in progress while another process takes over the trail has one
// answer, that its outcome is unknown, and that its later answer is no error. Any later call fails, and so does an
// answer without a call.
func TestReleaseAnswersWhatGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr := open1(t, dir, Options{})
	var calls []uint64
	for _, route := range []string{"done", "going on", "going on, for several boxes"} {
		seq, err := tr.Append(Entry{Kind: Call, KeyID: "key_1", Route: route, Box: "b"})
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, seq)
	}
	if _, err := tr.Append(Entry{Kind: Answer, Call: calls[0], Status: 200}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tr.Release(), tr.Release()); err != nil {
		t.Fatal(err)
	}
	next := open1(t, dir, Options{})
	if _, err := tr.Append(Entry{Kind: Answer, Call: calls[1], Status: 200}); err != nil {
		t.Errorf("how it ended: %v", err)
	}
	if _, err := tr.AppendAll([]Entry{{Kind: Answer, Call: calls[2], Status: 200}, {Kind: Policy, Call: calls[2], Box: "c"}}); err != nil {
		t.Errorf("how one with consequences for other boxes ended: %v", err)
	}
	for _, e := range []Entry{{Kind: Answer, Call: calls[1]}, {Kind: Answer, Call: 99}, {Kind: Call}, {Kind: Refused}} {
		if _, err := tr.Append(e); err == nil {
			t.Errorf("%+v was written by a process that has the trail no more", e)
		}
	}
	var answers []Entry
	if err := next.Read(t.Context(), Filter{}, false, func(line []byte) error {
		if e, _, err := openLine(line); err != nil || e.Kind == Answer {
			answers = append(answers, e)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(answers) != 3 || answers[1].Call != calls[1] || answers[1].Note != noteReplaced || answers[1].Status != 0 || answers[1].KeyID != "key_1" || answers[1].Box != "b" {
		t.Errorf("%+v", answers)
	}
	if r, err := Verify(dir, next.Head()); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
}

// TestReadFollows checks that existing and new entries are delivered once each, filtered by key.
func TestReadFollows(t *testing.T) {
	t.Parallel()
	tr := open1(t, t.TempDir(), Options{Size: 64 << 10})
	add(t, tr, 10)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seqs []uint64
	err := tr.Read(ctx, Filter{Key: "ci"}, true, func(line []byte) error {
		e, _, err := openLine(line)
		if err != nil {
			t.Error(err)
		}
		if seqs = append(seqs, e.Seq); len(seqs) == 10 {
			go func() {
				_, _ = tr.Append(Entry{Kind: Call, Key: "other"})
				for range 40 {
					_, _ = tr.Append(Entry{Kind: Call, Key: "ci", Note: strings.Repeat("x", 300)})
				}
			}()
		}
		if len(seqs) == 50 {
			cancel()
		}
		return nil
	})
	if len(seqs) != 50 || err == nil {
		t.Fatal(len(seqs), err)
	}
	for i := range seqs[1:] {
		if want := seqs[i] + 1; seqs[i+1] != want && (i != 9 || seqs[i+1] != want+1) {
			t.Errorf("entry %d follows %d", seqs[i+1], seqs[i])
		}
	}
}

// FuzzOpen checks that no line causes a panic, and that every accepted line was sealed.
func FuzzOpen(f *testing.F) {
	line, _, _ := Entry{Seq: 1, Kind: Call, Note: "é"}.seal()
	f.Add(line[:len(line)-1])
	if e, _, err := openLine(line[:len(line)-1]); err != nil || e.Note != "é" || bytes.ContainsRune(line, 'é') {
		f.Fatal(e, err)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, _, err := openLine(line)
		if err == nil && e.Seq == 0 && len(line) == 0 {
			t.Error("an empty line is an entry")
		}
	})
}
