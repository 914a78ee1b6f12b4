package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"boxgate/internal/nightly"
)

// What a capture writes is asked for before it is written: one that is refused has written no more than was allowed, and one that is
// allowed has asked for no less than the layer takes.
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
