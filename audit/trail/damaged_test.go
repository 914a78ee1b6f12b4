package trail

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestADamagedFileIsSetAside checks that a damaged file does not block calls when it must be removed. It stays on the
// disk, its readable part stays in the trail, and the trail records it.
func TestADamagedFileIsSetAside(t *testing.T) {
	t.Parallel()
	const size = 128 << 10
	dir := t.TempDir()
	tr := open1(t, dir, Options{Size: size})
	if _, err := tr.Append(Entry{Kind: Call, KeyID: "key_quiet", Route: "kept"}); err != nil {
		t.Fatal(err)
	}
	add(t, tr, 200)
	oldest := files(t, dir)[0]
	edit(t, oldest, func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 5<<20)...) })
	for i := 0; i < 3000 && slices.Contains(files(t, dir), oldest); i++ {
		add(t, tr, 1)
	}
	if b, err := os.ReadFile(oldest + ".damaged"); err != nil || len(b) < 5<<20 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if got := tr.files.Size(); got > size*5/4 {
		t.Errorf("%d bytes", got)
	}
	if r, err := Verify(dir, tr.Head()); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
	kept, said := false, false
	if err := tr.Read(t.Context(), Filter{}, false, func(line []byte) error {
		e, _, err := openLine(line)
		kept = kept || e.Origin().Route == "kept"
		said = said || e.Kind == Removed && strings.Contains(e.Note, filepath.Base(oldest)+".damaged")
		return err
	}); err != nil || !kept || !said {
		t.Errorf("kept %v, said %v: %v", kept, said, err)
	}
	if add(t, tr, 1000); tr.files.Size() > size*5/4 {
		t.Errorf("%d bytes", tr.files.Size())
	}
}

// TestADamagedFileHidesNothingBehindIt checks that entries after a damaged file are read, and that Verify reports where
// the file's readable part ends.
func TestADamagedFileHidesNothingBehindIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr := open1(t, dir, Options{Size: 128 << 10})
	add(t, tr, 100)
	damaged := files(t, dir)
	if len(damaged) < 2 {
		t.Fatal(damaged)
	}
	edit(t, damaged[0], func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 5<<20)...) })
	if _, err := tr.Append(Entry{Kind: Call, KeyID: "key_late", Route: "later"}); err != nil {
		t.Fatal(err)
	}
	for _, follow := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		n, later := 0, false
		err := tr.Read(ctx, Filter{}, follow, func(line []byte) error {
			e, _, err := openLine(line)
			if n++; e.Route == "later" {
				later = true
				cancel()
			}
			return err
		})
		if cancel(); n != 102 || !later || !follow && err != nil {
			t.Errorf("%d entries, the later one %v: %v", n, later, err)
		}
	}
	r, err := Verify(dir, tr.Head())
	if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "cannot be read") || r.Entries != 102 {
		t.Errorf("%+v %v", r, err)
	}
}

// TestATrailWhoseEndCannotBeReadIsNotContinued checks that the trail is not continued, in that file or in place of it,
// until the operator has followed the error's instructions. Earlier entries stay, and Verify reports the missing ones.
func TestATrailWhoseEndCannotBeReadIsNotContinued(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(newest string) error{
		"a disk that fails": func(newest string) error { // fails like reading this does
			return errors.Join(os.Rename(newest, newest+".kept"), os.Symlink("/proc/self/mem", newest))
		},
		"a change": func(newest string) error {
			b, err := os.ReadFile(newest)
			if err != nil {
				return err
			}
			return os.WriteFile(newest, append(append(make([]byte, 5<<20), '\n'), b...), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tr := open1(t, dir, Options{Size: 128 << 10})
			add(t, tr, 100)
			known := tr.Head()
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
			list := files(t, dir)
			newest := list[len(list)-1]
			if err := harm(newest); err != nil || len(list) < 2 {
				t.Fatal(list, err)
			}
			for range 2 {
				_, err := Open(dir, Options{Size: 128 << 10}, "started")
				if err == nil {
					t.Fatal("it is continued")
				}
				for _, want := range []string{dir, filepath.Base(newest) + ",", filepath.Base(newest) + ".damaged:"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q is missing in: %v", want, err)
					}
				}
			}
			if err := os.Rename(newest, newest+".damaged"); err != nil {
				t.Fatal(err)
			}
			tr = open1(t, dir, Options{Size: 128 << 10})
			if got := files(t, dir); !slices.Equal(got[:len(list)-1], list[:len(list)-1]) {
				t.Errorf("%v, there were %v", got, list)
			}
			if head := tr.Head(); head.Seq == 0 || head.Seq >= known.Seq {
				t.Errorf("it goes on after entry %d; there were %d", head.Seq, known.Seq)
			}
			r, err := Verify(dir, known)
			if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "which the store has recorded, is missing") {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
}
