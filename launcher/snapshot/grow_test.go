package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// A capture calls grow before it writes: a refused capture has written no more than was allowed, and an allowed one has
// requested at least the size of the layer.
func TestBytesAreAskedForBeforeTheyAreWritten(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(upper, name), make([]byte, 20<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	errMost := errors.New("most")
	try := func(most int64) (asked int64, to string, r Report, err error) {
		to = filepath.Join(t.TempDir(), "layer")
		terms := wide
		terms.Grow = func(n int64) error {
			if asked+n > most {
				return errMost
			}
			asked += n
			return nil
		}
		r, err = Capture(t.Context(), upper, testIDs, to, terms, unfrozen)
		return asked, to, r, err
	}
	const most = 30 << 20
	asked, to, _, err := try(most)
	used, merr := measure(t.Context(), to)
	if merr != nil {
		t.Fatal(merr)
	}
	if !errors.Is(err, errMost) || used.Size > most+1<<20 {
		t.Errorf("%v; %d bytes were written, of %d", err, used.Size, asked)
	}
	asked, _, r, err := try(1 << 40)
	if err != nil || asked < r.Size-1<<20 || asked > r.Size+1<<20 {
		t.Errorf("%v; %d bytes were asked for, of %d", err, asked, r.Size)
	}
}

// TestBytesOfAMergeAreAskedFor: a merge shares the files of its layers, but writes their directories again, and copies
// files that have reached the limit of links.
func TestBytesOfAMergeAreAskedFor(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	const size, dirs = 20 << 20, 300
	image, layer := t.TempDir(), t.TempDir()
	for i := range dirs {
		if err := os.MkdirAll(filepath.Join(Tree(layer), fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(Tree(layer), "file"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	errMost, asked := errors.New("most"), int64(0)
	within := func(most int64) func(int64) error {
		asked = 0
		return func(n int64) error {
			if asked+n > most {
				return errMost
			}
			asked += n
			return nil
		}
	}
	to := filepath.Join(t.TempDir(), "merged")
	whole, err := Merge(t.Context(), image, []string{layer}, to, within(1<<40))
	if written := whole.Size - size; err != nil || written < dirs*entryBytes || asked < written || asked > written+1<<20 {
		t.Errorf("%v; %d bytes were asked for, %d written", err, asked, written)
	}
	to = filepath.Join(t.TempDir(), "refused")
	if _, err := Merge(t.Context(), image, []string{layer}, to, within(dirs*entryBytes/2)); !errors.Is(err, errMost) {
		t.Errorf("a merge with room for half of the directories: %v", err)
	}
	src, err := os.Open(Tree(layer))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for _, most := range []int64{size / 2, size * 2} {
		dst, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dst.Close()
		e := entry{name: "file"}
		if err := unix.Fstatat(int(src.Fd()), e.name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
		err = merge{t.Context(), within(most)}.duplicate(src, dst, e)
		if copied, merr := measure(t.Context(), dst.Name()); merr != nil || (err != nil) != (most < size) || copied.Size > most+1<<20 {
			t.Errorf("a copy of %d bytes with room for %d: %v; %d were written; %v", size, most, err, copied.Size, merr)
		}
	}
}
