package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
)

var testIDs = namespace.IDsAt(7)

// mountRoot mounts lower directories, the highest first, below an empty upper one, and returns the mount point and the
// upper one.
func mountRoot(t *testing.T, lowers ...string) (root, upper string) {
	t.Helper()
	dir := t.TempDir()
	root, upper = filepath.Join(dir, "root"), filepath.Join(dir, "upper")
	for _, d := range []string{root, upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s/work", strings.Join(lowers, ":"), upper, dir)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(root, unix.MNT_DETACH), files.RemoveTree(context.Background(), dir)); err != nil {
			t.Error(err)
		}
	})
	return root, upper
}

// describeTree returns a line with all properties of each entry of a tree.
func describeTree(t *testing.T, root string, ids namespace.IDs) map[string]string {
	t.Helper()
	found := map[string]string{}
	names := map[uint64][]string{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name := strings.TrimPrefix(path, root)
		line := fmt.Sprintf("mode %o owner %d:%d", st.Mode, unmapped(ids, st.Uid), unmapped(ids, st.Gid))
		attrs, err := readAttrs(filepath.Dir(path)+"/./././"+filepath.Base(path), ids) // a path that is not followed
		for _, a := range attrs {
			if !strings.HasPrefix(a.Name, overlay) {
				line += fmt.Sprintf(" %s=%x", a.Name, a.Value)
			}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, rerr := os.ReadFile(path)
			err = errors.Join(err, rerr)
			line += fmt.Sprintf(" time %v contents %x", st.Mtim, sha256.Sum256(data))
			names[st.Ino] = append(names[st.Ino], name)
		case unix.S_IFLNK:
			target, rerr := os.Readlink(path)
			err = errors.Join(err, rerr)
			line += " to " + target
		}
		found[name] = line
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, same := range names {
		for _, name := range same {
			found[name] += fmt.Sprintf(" names %q", same)
		}
	}
	return found
}

func equalTrees(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: %q\n got %s\nwant %s", what, name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if want[name] == "" {
			t.Errorf("%s: %q should not be there: %s", what, name, got[name])
		}
	}
}

// unfrozen calls f directly: the tree does not change anyway.
func unfrozen(f func() error) error { return f() }

// populate makes an image with some depth.
func populate(t *testing.T) string {
	t.Helper()
	image := t.TempDir()
	for i := range 40 {
		dir := filepath.Join(image, fmt.Sprint("d", i%4), fmt.Sprint("e", i%3))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte(fmt.Sprint("image ", i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(image, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, testIDs.Host(0), testIDs.Host(0)))
	})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// scribble changes a tree in many ways, at random.
func scribble(t *testing.T, root string, rnd *rand.Rand, changes int) {
	t.Helper()
	anywhere := func() string {
		p := root
		for range 1 + rnd.IntN(4) {
			p = filepath.Join(p, []string{"d0", "d1", "d2", "e0", "e1", "new", "f1", "f7", "f9", "odd\n\x1b"}[rnd.IntN(10)])
		}
		return p
	}
	for i := range changes {
		p := anywhere()
		switch rnd.IntN(14) {
		case 0, 1, 2:
			if f, err := os.OpenFile(p, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NONBLOCK, 0o600); err == nil { // it may be a pipe
				_, _ = fmt.Fprint(f, "change ", i)
				f.Close()
			}
		case 3:
			_ = os.MkdirAll(p, 0o750)
		case 4:
			if fi, err := os.Stat(filepath.Dir(p)); err == nil && fi.IsDir() { // otherwise it may be a pipe, which is opened
				_ = os.RemoveAll(p)
			}
		case 5:
			_ = os.Remove(p)
		case 6:
			_ = os.Symlink("../somewhere", p)
		case 7:
			_ = os.Link(p, anywhere())
		case 8:
			_ = os.Rename(p, anywhere())
		case 9:
			_ = unix.Mkfifo(p, 0o640)
			_ = unix.Mknod(anywhere(), unix.S_IFSOCK|0o700, 0)
		case 10:
			_ = os.Lchown(p, testIDs.Host(rnd.IntN(2000)), testIDs.Host(rnd.IntN(2000)))
			_ = unix.Fchmodat(unix.AT_FDCWD, p, uint32(rnd.IntN(0o10000)), 0)
		case 11:
			_ = unix.Lsetxattr(p, "user.note", []byte(fmt.Sprint(i)), 0)
		case 12:
			_ = unix.Lremovexattr(p, "user.note")
		case 13:
			_ = os.Truncate(p, int64(rnd.IntN(1<<20)))
		}
	}
}

// TestLayersMeanTheSame lets boxes change files at random, each on the snapshot of the previous one, and compares the files
// that the next one sees: over all layers, and over one merged from them.
func TestLayersMeanTheSame(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			image, dir := populate(t), t.TempDir()
			var layers []string // the lowest first
			lowers := []string{image}
			for i := range 4 {
				root, upper := mountRoot(t, lowers...)
				scribble(t, root, rnd, 120)
				want := describeTree(t, root, testIDs)
				layer := filepath.Join(dir, fmt.Sprint(i))
				report, err := Capture(t.Context(), upper, testIDs, layer, wide, unfrozen)
				if err != nil {
					t.Fatal(err)
				}
				if left, err := os.ReadDir(layer); err != nil || len(left) != 1 || report.Files == 0 || report.Size == 0 {
					t.Errorf("%v in the layer, %+v, %v", left, report, err)
				}
				layers = append(layers, layer)
				again := filepath.Join(dir, fmt.Sprint("again", i)) // a second snapshot of the same box
				if _, err := Capture(t.Context(), upper, testIDs, again, wide, unfrozen); err != nil {
					t.Fatal(err)
				}
				lowers = append([]string{Tree(relocated(t, again))}, lowers...)
				seen, _ := mountRoot(t, lowers...)
				equalTrees(t, "stacked", describeTree(t, seen, testIDs), want)
				merged := filepath.Join(dir, fmt.Sprint("merged", i))
				if _, err := Merge(t.Context(), image, layers, merged, nil); err != nil {
					t.Fatal(err)
				}
				seen, _ = mountRoot(t, Tree(relocated(t, merged)), image)
				equalTrees(t, "merged", describeTree(t, seen, testIDs), want)
			}
		})
	}
}

// relocated changes the owners of a layer's files to the owners that a box with the test's IDs sees, as its mount does.
func relocated(t *testing.T, layer string) string {
	t.Helper()
	err := filepath.WalkDir(Tree(layer), func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil || int(st.Uid) >= testIDs.Host(0) {
			return err // another name of a file
		}
		if st.Uid > overflowID || st.Gid > overflowID {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		err = os.Lchown(path, testIDs.Host(int(st.Uid)), testIDs.Host(int(st.Gid)))
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			err = unix.Chmod(path, st.Mode&0o7777)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func TestCaptureKeepsHolesCapabilitiesAndLists(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper := t.TempDir()
	file := filepath.Join(upper, "file")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("the end"), 1<<30)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	// CAP_NET_BIND_SERVICE for root of the box only, as the kernel stores capabilities that the box sets.
	capabilities := binary.LittleEndian.AppendUint32(nil, capRevision3|1)
	capabilities = binary.LittleEndian.AppendUint32(capabilities, 1<<10)
	capabilities = append(capabilities, make([]byte, 12)...)
	capabilities = binary.LittleEndian.AppendUint32(capabilities, uint32(testIDs.Host(0)))
	list := []byte{2, 0, 0, 0}
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 6, ^uint32(0)}, {2, 4, uint32(testIDs.Host(1234))}, {4, 4, ^uint32(0)}, {16, 4, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	for name, value := range map[string][]byte{capability: capabilities, aclPrefix + "access": list, overlay + "origin": []byte("elsewhere")} {
		if err := unix.Setxattr(file, name, value, 0); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	to := filepath.Join(t.TempDir(), "layer")
	report, err := Capture(t.Context(), upper, testIDs, to, wide, unfrozen)
	if err != nil {
		t.Fatal(err)
	}
	if report.Size > 1<<20 {
		t.Errorf("a file with a hole counts as %d bytes", report.Size)
	}
	copied := filepath.Join(Tree(to), "file")
	var st unix.Stat_t
	if err := unix.Stat(copied, &st); err != nil || st.Size != 1<<30+7 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	for name, want := range map[string][]byte{
		capability:            append(binary.LittleEndian.AppendUint32(nil, capRevision2|1), capabilities[4:capSize2]...),
		aclPrefix + "access":  bytes.Replace(list, binary.LittleEndian.AppendUint32(nil, uint32(testIDs.Host(1234))), []byte{0xd2, 4, 0, 0}, 1),
		overlay + "origin":    nil,
		overlay + "redirect":  nil,
		"user.never.was.here": nil,
	} {
		if got, _ := attrValue(fdDirPath(copied), name); !bytes.Equal(got, want) {
			t.Errorf("%s is %x, not %x", name, got, want)
		}
	}
}

// fdDirPath writes a path so that a link at its end is not followed.
func fdDirPath(path string) string { return filepath.Dir(path) + "/./././././" + filepath.Base(path) }

// TestCaptureIsOfOneInstant: a program writes two files without end, always one before the other, through memory maps, and
// others with system calls. The layer has their state at the time of the freeze.
func TestCaptureIsOfOneInstant(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper := t.TempDir()
	for i := range 2 * fewFiles {
		if err := os.WriteFile(filepath.Join(upper, fmt.Sprint("other", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const size = 4 << 20
	var maps [2][]byte
	for i := range maps {
		f, err := os.Create(filepath.Join(upper, fmt.Sprint("mapped", i)))
		if err == nil {
			err = errors.Join(f.Truncate(size))
		}
		if err == nil {
			maps[i], err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		defer func() { _ = unix.Munmap(maps[i]) }()
	}
	var still sync.Mutex // held while no file is written
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := uint64(1); ctx.Err() == nil; n++ {
			still.Lock()
			for at := 0; at < size; at += size / 8 {
				binary.LittleEndian.PutUint64(maps[0][at:], n)
				binary.LittleEndian.PutUint64(maps[1][at:], n)
			}
			_ = os.WriteFile(filepath.Join(upper, "called"), binary.LittleEndian.AppendUint64(nil, n), 0o600)
			_ = os.Rename(filepath.Join(upper, fmt.Sprint("other", n%100)), filepath.Join(upper, fmt.Sprint("other", (n+1)%100)))
			still.Unlock()
		}
	})
	defer writer.Wait()
	defer stop()
	for i := range 3 {
		to := filepath.Join(t.TempDir(), fmt.Sprint(i))
		var now uint64
		_, err := Capture(t.Context(), upper, testIDs, to, wide, func(f func() error) error {
			still.Lock()
			defer still.Unlock()
			now = binary.LittleEndian.Uint64(maps[0])
			return f()
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"mapped0", "mapped1", "called"} {
			data, err := os.ReadFile(filepath.Join(Tree(to), name))
			if err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(data); at += size / 8 {
				if got := binary.LittleEndian.Uint64(data[at:]); got != now {
					t.Errorf("%s at %d is of instant %d, not %d", name, at, got, now)
				}
			}
		}
	}
}

func TestCaptureRefusesWhatItCannotHold(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, c := range map[string]struct {
		make func(upper string) error
		want string
	}{
		"deep": {func(upper string) error {
			dir := upper
			for range maxDepth {
				dir = filepath.Join(dir, "d")
			}
			return os.MkdirAll(dir, 0o700)
		}, "nested more than"},
		"redirected": {func(upper string) error {
			return unix.Setxattr(upper, overlay+"redirect", []byte("/etc"), 0)
		}, "create it again"},
		"a device": {func(upper string) error {
			return unix.Mknod(filepath.Join(upper, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		}, "which no box can make"},
		"a mount": {func(upper string) error {
			at := filepath.Join(upper, "mounted")
			return errors.Join(os.Mkdir(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, ""))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upper := t.TempDir()
			if err := c.make(upper); err != nil {
				t.Fatal(err)
			}
			_, err := Capture(t.Context(), upper, testIDs, filepath.Join(t.TempDir(), "layer"), wide, unfrozen)
			_ = unix.Unmount(filepath.Join(upper, "mounted"), unix.MNT_DETACH)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

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

// TestCaptureOnAFullDisk: a capture fails with that reason; to another file system, which shares no blocks with the box's,
// it works.
func TestCaptureOnAFullDisk(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper, disk := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(upper, "small"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Capture(t.Context(), upper, testIDs, filepath.Join(disk, "fits"), wide, unfrozen); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(Tree(filepath.Join(disk, "fits")), "small")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, size := range []int{6 << 20, 30 << 20} { // copied while the box is frozen, and ahead
		if err := os.WriteFile(filepath.Join(upper, "large"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(disk, "full")
		if _, err := Capture(t.Context(), upper, testIDs, to, wide, unfrozen); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
}
