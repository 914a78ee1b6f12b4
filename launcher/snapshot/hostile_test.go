package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// wide has limits that the trees of these tests do not reach.
var wide = Terms{Entries: 1 << 20, Frozen: time.Hour}

// manyFiles makes empty files.
func manyFiles(t *testing.T, dir string, count int) {
	t.Helper()
	for i := range count {
		if err := unix.Mknod(filepath.Join(dir, fmt.Sprint("f", i)), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A directory may have more entries than should be in memory.
func TestDirectoriesAreReadInPieces(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	manyFiles(t, top, 3*namesPerRead)
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, err := range namesIn(dir) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if left, err := dir.Readdirnames(-1); err != nil || len(left) < namesPerRead {
		t.Errorf("after the first entry %d of %d are left, %v", len(left), 3*namesPerRead, err)
	}
}

// The size of a tree is computed without remembering every file with several names.
func TestFilesWithSeveralNamesAreNotAllRemembered(t *testing.T) {
	t.Parallel()
	var s sizes
	const count = maxLinked + 1000
	for range 2 { // names
		for i := range uint64(count) {
			s.add(entry{stat: unix.Stat_t{Ino: i, Nlink: 2, Mode: unix.S_IFREG, Blocks: 8}})
		}
	}
	if want := int64(count * 8 * 512); s.bytes != want {
		t.Errorf("%d bytes, not %d", s.bytes, want)
	}
	if len(s.linked) > maxLinked {
		t.Errorf("%d files are remembered", len(s.linked))
	}
}

// A file of the box may have as many names as its file system allows.
func TestCaptureOfAFileWithAllNamesThatItCanHave(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper := t.TempDir()
	file := filepath.Join(upper, "0")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := 1
	for ; names < nightly.Size(2_000, 70_000); names++ { // the latter is more than a file can have
		err := os.Link(file, filepath.Join(upper, fmt.Sprint(names)))
		if errors.Is(err, unix.EMLINK) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "layer")
	report, err := Capture(t.Context(), upper, testIDs, to, wide, unfrozen)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(Tree(to), "0"), &st); err != nil || st.Size != 7 || int(st.Nlink) != names || report.Files != int64(names)+1 {
		t.Errorf("%d names of %d are left, %d bytes, %+v, %v", st.Nlink, names, st.Size, report, err)
	}
	other, err := unarchived(t, archived(t, to))
	if err != nil {
		t.Fatalf("on another host: %v", err)
	}
	if err := unix.Stat(filepath.Join(Tree(other), "0"), &st); err != nil || st.Size != 7 || int(st.Nlink) != names {
		t.Errorf("on another host %d names of %d are left, %d bytes, %v", st.Nlink, names, st.Size, err)
	}
}

// A box may write more files than a capture may visit, while it is copied ahead or before.
func TestCaptureOfTooManyFiles(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper := t.TempDir()
	manyFiles(t, upper, 2*fewFiles)
	for _, most := range []int64{10, 2*fewFiles - 1} { // below and above the first limit
		_, err := Capture(t.Context(), upper, testIDs, filepath.Join(t.TempDir(), "layer"), Terms{Entries: most, Frozen: time.Hour}, unfrozen)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d files", most)) {
			t.Errorf("at most %d: %v", most, err)
		}
	}
	if _, err := Capture(t.Context(), upper, testIDs, filepath.Join(t.TempDir(), "layer"), Terms{Entries: 2 * fewFiles, Frozen: time.Hour}, unfrozen); err != nil {
		t.Error(err)
	}
	if _, err := Capture(t.Context(), upper, testIDs, filepath.Join(t.TempDir(), "layer"), Terms{}, unfrozen); err == nil {
		t.Error("without limits a capture is not refused")
	}
}

// The freeze of a box is bounded, however much is left to copy, and a capture ends with its context.
func TestCaptureEndsInTime(t *testing.T) {
	t.Parallel()
	upper := t.TempDir()
	manyFiles(t, upper, 10)
	capture := func(ctx context.Context, frozen time.Duration) error {
		_, err := Capture(ctx, upper, testIDs, filepath.Join(t.TempDir(), "layer"), Terms{Entries: math.MaxInt64, Frozen: frozen}, unfrozen)
		return err
	}
	if err := capture(t.Context(), time.Nanosecond); !errors.Is(err, errFrozenTooLong) {
		t.Errorf("a box that would stand still for long: %v", err)
	}
	errSlow := errors.New("slow")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, errSlow)
	defer cancel()
	if err := capture(ctx, time.Hour); !errors.Is(err, errSlow) {
		t.Errorf("a capture that takes long: %v", err)
	}
}
