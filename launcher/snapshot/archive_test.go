package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// richLayer makes a layer with entries of each kind that an ordinary user can make.
func richLayer(t testing.TB) (layer string) {
	t.Helper()
	layer = filepath.Join(t.TempDir(), "layer")
	tree := Tree(layer)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(tree, "dir", "deep"), 0o755))
	must(os.WriteFile(filepath.Join(tree, "dir", "odd\xff\nname"), []byte("odd"), 0o640))
	must(os.WriteFile(filepath.Join(tree, "large"), bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o4755))
	must(os.Chmod(filepath.Join(tree, "large"), 0o755|os.ModeSetuid))
	must(os.Link(filepath.Join(tree, "large"), filepath.Join(tree, "dir", "deep", "linked")))
	must(os.Symlink("../../outside", filepath.Join(tree, "dir", "link")))
	must(unix.Mkfifo(filepath.Join(tree, "pipe"), 0o600))
	must(os.WriteFile(filepath.Join(tree, "empty"), nil, 0o400))
	must(unix.Setxattr(filepath.Join(tree, "large"), "user.note", []byte("a\x00b"), 0))
	holes, err := os.Create(filepath.Join(tree, "holes"))
	must(err)
	must(holes.Truncate(1 << 30))
	_, err = holes.WriteAt([]byte("middle"), 512<<20)
	must(err)
	must(holes.Close())
	old := unix.NsecToTimespec(1_234_567_890_123_456_789)
	must(unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(tree, "dir"), []unix.Timespec{old, old}, 0))
	return layer
}

func archived(t testing.TB, layer string) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := Archive(t.Context(), layer, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func unarchived(t testing.TB, archive []byte) (string, error) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	_, err := Unarchive(t.Context(), bytes.NewReader(archive), to, wide)
	return to, err
}

// TestArchiveKeepsLayer: a copy of a layer has the same archive as the layer, so it has the same files, modes, times, links and attributes.
func TestArchiveKeepsLayer(t *testing.T) {
	t.Parallel()
	layer := richLayer(t)
	archive := archived(t, layer)
	if !bytes.Equal(archive, archived(t, layer)) {
		t.Fatal("two archives of the same layer differ")
	}
	if len(archive) > 1<<20 {
		t.Errorf("the archive has %d bytes: it contains the holes", len(archive))
	}
	to, err := unarchived(t, archive)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := described(t, to), described(t, layer); got != want {
		t.Errorf("the copy has\n%s\nwant\n%s", got, want)
	}
	var linked, large, holes unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(Tree(to), "large"), &large), unix.Stat(filepath.Join(Tree(to), "dir/deep/linked"), &linked), unix.Stat(filepath.Join(Tree(to), "holes"), &holes)); err != nil {
		t.Fatal(err)
	}
	if large.Ino != linked.Ino || large.Nlink != 2 {
		t.Errorf("a hard link was not kept: %d names", large.Nlink)
	}
	if holes.Blocks*512 > 1<<20 {
		t.Errorf("a file of holes takes %d bytes", holes.Blocks*512)
	}
	if _, err := os.Stat(filepath.Join(to, bodiesDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the working directory is left: %v", err)
	}
}

// described lists the entries of a layer in the order of their names.
func described(t testing.TB, layer string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(Tree(layer), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		names, err := attrNames(path)
		if err != nil {
			return err
		}
		content := ""
		if d.Type().IsRegular() && st.Size < 1<<20 {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(data)
		}
		rel, _ := filepath.Rel(layer, path)
		size := st.Size
		if d.IsDir() {
			size = 0
		}
		_, err = io.WriteString(&out, strings.Join([]string{rel, d.Type().String(), itoa(uint64(st.Mode)), itoa(uint64(size)), itoa(uint64(st.Uid)), itoa(uint64(st.Mtim.Nano())), strings.Join(names, ","), content}, " ")+"\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func itoa(n uint64) string { return string(appendUint(nil, n)) }

func appendUint(b []byte, n uint64) []byte {
	if n >= 10 {
		b = appendUint(b, n/10)
	}
	return append(b, byte('0'+n%10))
}

// forged writes an archive of entries, each with the runs of a file.
func forged(t testing.TB, entries ...packed) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := gob.NewEncoder(&buf)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
		if e.Item.Mode&unix.S_IFMT == unix.S_IFREG {
			buf.Write([]byte{0, 0})
		}
	}
	return buf.Bytes()
}

// TestForgedArchivesAreRefused: an archive that a capture cannot have written makes no file outside of its directory.
func TestForgedArchivesAreRefused(t *testing.T) {
	t.Parallel()
	top := packed{Item: item{Mode: unix.S_IFDIR | 0o755}}
	leave, last := packed{Item: item{Leave: true}}, packed{Last: true}
	named := func(name string, mode uint32) packed {
		uid := uint32(os.Getuid())
		return packed{Item: item{Name: name, Mode: mode, UID: uid, GID: uint32(os.Getgid())}}
	}
	with := func(p packed, change func(*packed)) packed { change(&p); return p }
	top.Item.UID, top.Item.GID = uint32(os.Getuid()), uint32(os.Getgid())
	file := named("f", unix.S_IFREG|0o644)
	for name, entries := range map[string][]packed{
		"parent":             {top, named("..", unix.S_IFDIR|0o755), named("x", unix.S_IFREG), leave, leave, last},
		"own":                {top, named(".", unix.S_IFREG), leave, last},
		"path":               {top, named("../x", unix.S_IFREG), leave, last},
		"absolute":           {top, named("/tmp/x", unix.S_IFREG), leave, last},
		"NUL":                {top, named("a\x00b", unix.S_IFREG), leave, last},
		"no name":            {top, named("", unix.S_IFREG), leave, last},
		"second top":         {top, leave, top, leave, last},
		"no top":             {file, last},
		"only the end":       {last},
		"device":             {top, with(named("d", unix.S_IFCHR|0o666), func(p *packed) { p.Item.Rdev = 0x103 }), leave, last},
		"disk":               {top, named("d", unix.S_IFBLK|0o666), leave, last},
		"no kind":            {top, named("d", 0o666), leave, last},
		"redirect":           {top, with(named("d", unix.S_IFDIR), func(p *packed) { p.Item.Attrs = []attr{{overlay + "redirect", []byte("/")}} }), leave, leave, last},
		"security attribute": {top, with(file, func(p *packed) { p.Item.Attrs = []attr{{"security.selinux", []byte("x")}} }), leave, last},
		"body":               {top, with(file, func(p *packed) { p.Item.Body = "../../x" }), leave, last},
		"owner":              {top, with(file, func(p *packed) { p.Item.UID = 100_000 }), leave, last},
		"link to no file":    {top, with(file, func(p *packed) { p.Link = 7 }), leave, last},
		"leaves the top":     {top, leave, leave, last},
		"ends inside":        {top, last},
		"cut":                {top, file},
		"through a link":     {top, with(named("l", unix.S_IFLNK), func(p *packed) { p.Item.Target = "/tmp" }), named("l", unix.S_IFDIR|0o755), file, leave, leave, last},
		"twice":              {top, file, file, leave, last},
		"negative size":      {top, with(file, func(p *packed) { p.Size = -1 }), leave, last},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := unarchived(t, forged(t, entries...)); err == nil {
				t.Error("it was accepted")
			}
		})
	}
	if _, err := unarchived(t, append(forged(t, top, file, leave, last), 0)); !errors.Is(err, ErrArchive) {
		t.Errorf("bytes after the end: %v", err)
	}
	if _, err := unarchived(t, forged(t, top, file, leave, last)); err != nil {
		t.Errorf("a whole archive: %v", err)
	}
}

// TestUnarchiveIsBounded: an archive ends when it has too many entries, or when no more bytes are granted.
func TestUnarchiveIsBounded(t *testing.T) {
	t.Parallel()
	archive := archived(t, richLayer(t))
	errFull := errors.New("full")
	for name, terms := range map[string]Terms{
		"entries": {Entries: 4},
		"bytes": {Entries: 100, Grow: func() func(int64) error {
			left := int64(100_000)
			return func(n int64) error {
				if left -= n; left < 0 {
					return errFull
				}
				return nil
			}
		}()},
	} {
		to := filepath.Join(t.TempDir(), "copy")
		_, err := Unarchive(context.Background(), bytes.NewReader(archive), to, terms)
		if !errors.Is(err, errFull) && !errors.Is(err, ErrArchive) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCopyTakesNoMoreOfTheDisk: a box that writes one page of each block of a file has a copy with the same holes.
func TestCopyTakesNoMoreOfTheDisk(t *testing.T) {
	t.Parallel()
	layer := filepath.Join(t.TempDir(), "layer")
	if err := os.MkdirAll(Tree(layer), 0o755); err != nil {
		t.Fatal(err)
	}
	const blocks = 64
	f, err := os.Create(filepath.Join(Tree(layer), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range int64(blocks) {
		if _, err := f.WriteAt(bytes.Repeat([]byte{1}, pageSize), i*blockSize+i%4*pageSize); err != nil {
			t.Fatal(err)
		}
	}
	asked := int64(0)
	to, terms := filepath.Join(t.TempDir(), "copy"), wide
	terms.Grow = func(n int64) error { asked += n; return nil }
	archive := archived(t, layer)
	if _, err := Unarchive(t.Context(), bytes.NewReader(archive), to, terms); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archived(t, to), archive) {
		t.Error("the copy has other contents")
	}
	var was, is unix.Stat_t
	if err := errors.Join(unix.Stat(f.Name(), &was), unix.Stat(filepath.Join(Tree(to), "f"), &is)); err != nil {
		t.Fatal(err)
	}
	if most := was.Blocks*512 + blockSize; is.Blocks*512 > most || asked > most {
		t.Errorf("the copy takes %d bytes, asked for %d; the original takes %d", is.Blocks*512, asked, was.Blocks*512)
	}
}

// TestArchiveWritesNoFileTwice: a box whose files have many names does not make its archive many times as large.
func TestArchiveWritesNoFileTwice(t *testing.T) {
	t.Parallel()
	layer := richLayer(t)
	if most := launcherEntries / 2; maxArchiveLinks < most {
		t.Errorf("a snapshot can have %d files with several names, and an archive %d", most, maxArchiveLinks)
	}
	a := archiver{ctx: t.Context(), w: bufio.NewWriter(io.Discard), enc: gob.NewEncoder(io.Discard), links: map[uint64]uint32{}}
	for i := range uint64(maxArchiveLinks) {
		a.links[1<<63+i] = uint32(i + 1)
	}
	dir, err := os.Open(Tree(layer))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	e := entry{name: "large"}
	if err := unix.Lstat(filepath.Join(Tree(layer), e.name), &e.stat); err != nil {
		t.Fatal(err)
	}
	if err := a.add(dir, e); err == nil {
		t.Error("the contents follow each name")
	}
}

// launcherEntries is the limit of the launcher on the entries of a snapshot.
const launcherEntries = 2 << 20

// FuzzUnarchive: whatever an archive contains, no file appears beside its directory.
func FuzzUnarchive(f *testing.F) {
	file := packed{Item: item{Name: "f", Mode: unix.S_IFREG | 0o644, Attrs: []attr{{"user.note", []byte("x")}}}}
	f.Add(forged(f, packed{Item: item{Mode: unix.S_IFDIR | 0o755}}, file, packed{Item: item{Leave: true}}, packed{Last: true}))
	f.Add(forged(f, packed{Item: item{Mode: unix.S_IFDIR | 0o755}}, packed{Item: item{Name: "..", Mode: unix.S_IFDIR}}))
	memory := "/dev/shm" // much faster than a disk
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "unarchive")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	f.Fuzz(func(t *testing.T, archive []byte) {
		layer := filepath.Join(dir, "copy")
		_ = unpack(t.Context(), bytes.NewReader(archive), layer, Terms{Entries: 100})
		err := os.RemoveAll(layer)
		entries, rerr := os.ReadDir(dir)
		if err := errors.Join(err, rerr); err != nil || len(entries) > 0 {
			t.Errorf("beside the layer: %v, %v", entries, err)
		}
	})
}
