package worker

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// archiveOf makes an archive of entries without content.
func archiveOf(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &archive
}

func dirEntry(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func linkEntry(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

// pack returns a directory as an archive, and how many files are missing in it.
func (b *box) pack(name string) ([]byte, int) {
	b.t.Helper()
	if _, err := b.do(Request{Op: OpPack, Path: b.at(name)}); err != nil {
		b.t.Fatal(err)
	}
	data, err := io.ReadAll(&ContentReader{R: b.out})
	if err != nil {
		b.t.Fatal(err)
	}
	a, err := b.answer()
	if err != nil {
		b.t.Fatal(err)
	}
	return data, a.Skipped
}

func (b *box) unpack(name string, archive io.Reader) error {
	b.t.Helper()
	return b.send(Request{Op: OpUnpack, Path: b.at(name)}, archive)
}

// found lists what is below a directory, sorted.
func (b *box) found(name string) string {
	b.t.Helper()
	var names []string
	root := filepath.Join(b.dir, name)
	b.must(filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, path); rel != "." {
			names = append(names, rel)
		}
		return err
	}))
	return strings.Join(names, " ")
}

// TestArchives: unpacking a packed directory restores it, and an archive creates nothing outside of the folder.
func TestArchives(t *testing.T) {
	b := newBox(t)
	in := func(name string) string { return filepath.Join(b.dir, name) }
	b.must(os.MkdirAll(in("from/sub"), 0o755), os.MkdirAll(in("from/sealed"), 0o755), os.Mkdir(in("from/empty"), 0o755), os.Mkdir(in("from/closed"), 0),
		os.WriteFile(in("from/sub/tool"), []byte("run"), 0o755), os.WriteFile(in("from/sealed/in"), []byte("in"), 0o644), os.Chmod(in("from/sealed"), 0o500),
		os.Symlink("/etc/hostname", in("from/link")), unix.Mkfifo(in("from/pipe"), 0o644), os.WriteFile(in("from/unreadable"), nil, 0))
	data, skipped := b.pack("from/sub/..")
	if skipped != 3 {
		t.Errorf("%d of 3 entries that cannot be read were counted", skipped)
	}
	for range 2 { // the second time over existing files
		if err := b.unpack("to", bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(in("to/sealed")); err != nil || fi.Mode().Perm() != 0o500 {
			t.Errorf("permissions %v, %v", fi.Mode(), err)
		}
		b.must(os.Chmod(in("to/sealed"), 0o700), os.Chmod(in("to/closed"), 0o700))
	}
	if got := b.found("to"); got != "closed empty link sealed sealed/in sub sub/tool" {
		t.Error(got)
	}
	b.has("to/sub/tool", "run")
	b.has("to/sealed/in", "in")
	if fi, err := os.Stat(in("to/sub/tool")); err != nil || fi.Mode() != 0o755 {
		t.Errorf("permissions %v, %v", fi.Mode(), err)
	}
	if to, err := os.Readlink(in("to/link")); err != nil || to != "/etc/hostname" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	for _, name := range []string{"../out", in("out"), "a/../../out", ""} {
		if err := b.unpack("to", archiveOf(t, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644})); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q in an archive: %v", name, err)
		}
	}
	for _, to := range []string{b.dir, "../victim", "in/../../victim"} {
		b.must(os.MkdirAll(in("victim"), 0o755))
		err := b.unpack("to", archiveOf(t, dirEntry("in", 0o755), linkEntry("here", "."), linkEntry("here/away", to), tar.Header{Name: "away/out", Typeflag: tar.TypeReg, Mode: 0o644}))
		if !errors.Is(err, unix.EEXIST) {
			t.Errorf("through its own link to %s: %v", to, err)
		}
		b.must(os.RemoveAll(in("to/away")))
	}
	if entries, err := os.ReadDir(b.dir); err != nil || len(entries) != 3 || b.found("victim") != "" {
		t.Errorf("%v, %q, %v", entries, b.found("victim"), err)
	}
}

// Links of an archive that lead out of the folder are created last. No file is created or changed behind them: not through
// another such link, nor by the permissions of a directory.
func TestArchivesDoNotFollowTheirLateLinks(t *testing.T) {
	b := newBox(t)
	for name, c := range map[string]struct {
		archive []tar.Header
		want    string // of the folder, if the archive is not refused
	}{
		"a link below another":               {[]tar.Header{linkEntry("up", "../victim"), linkEntry("up/evil", "/etc")}, ""},
		"a link below one that leads to it":  {[]tar.Header{linkEntry("near", "up"), linkEntry("up", "../victim"), linkEntry("near/evil", "/etc")}, ""},
		"a link below one that was replaced": {[]tar.Header{dirEntry("sub", 0o777), linkEntry("here", "sub"), linkEntry("here", "../victim"), linkEntry("here/sub/evil", "/etc")}, "here sub sub/sub sub/sub/evil"},
		"permissions":                        {[]tar.Header{linkEntry("here", "."), dirEntry("here/sub", 0o777), linkEntry("here", "../victim")}, "here sub"},
	} {
		b.must(os.RemoveAll(b.dir+"/victim"), os.RemoveAll(b.dir+"/to"), os.MkdirAll(b.dir+"/victim/sub", 0o755), os.Chmod(b.dir+"/victim/sub", 0o700))
		if err := b.unpack("to", archiveOf(t, c.archive...)); (err != nil) != (c.want == "") {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.found("to"); c.want != "" && got != c.want {
			t.Errorf("%s: %s", name, got)
		}
		if fi, err := os.Stat(b.dir + "/victim/sub"); err != nil || fi.Mode().Perm() != 0o700 || b.found("victim") != "sub" {
			t.Errorf("%s: outside there is %s, %v, %v", name, b.found("victim"), fi.Mode(), err)
		}
	}
}

// TestArchivesOfOtherPrograms: the comment of git archive is skipped, padding is read, and other entries than files,
// directories and symbolic links are refused.
func TestArchivesOfOtherPrograms(t *testing.T) {
	b := newBox(t)
	comment := tar.Header{Name: "pax_global_header", Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "0123"}}
	archive := archiveOf(t, comment, tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o600})
	archive.Write(make([]byte, 3*MaxChunk))
	if err := b.unpack("to", archive); err != nil {
		t.Fatal(err)
	}
	if a, err := b.do(Request{Op: OpStat, Path: b.at("to/file")}); err != nil || a.Info.Mode != 0o600 {
		t.Errorf("after the padding: %+v, %v", a.Info, err)
	}
	for _, kind := range []byte{tar.TypeLink, tar.TypeFifo, tar.TypeChar, tar.TypeBlock} {
		if err := b.unpack("to", archiveOf(t, tar.Header{Name: "odd", Linkname: "file", Typeflag: kind})); !errors.Is(err, unix.EINVAL) {
			t.Errorf("type %c: %v", kind, err)
		}
	}
	for name, text := range map[string]string{"no archive": strings.Repeat("x", 1024), "half an archive": archiveOf(t, dirEntry("d", 0o755)).String()[:300]} {
		if err := b.unpack("to", strings.NewReader(text)); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
	if got := b.found("to"); got != "file" {
		t.Error(got)
	}
	b.must(os.Mkdir(b.dir+"/closed", 0o500))
	for folder, entries := range map[string][]tar.Header{
		"closed/to": nil, "to/file": nil, "closed": {linkEntry("link", "a")},
		"to": {dirEntry("file/sub", 0o755), linkEntry("file/link", "a")},
	} {
		if err := b.unpack(folder, archiveOf(t, entries...)); err == nil {
			t.Errorf("into %s: no error", folder)
		}
	}
}

// TestFilesThatShrink: an archive has as many bytes of a file as the file had when it was opened.
func TestFilesThatShrink(t *testing.T) {
	var archive bytes.Buffer
	b := newBox(t)
	b.must(os.WriteFile(b.dir+"/file", bytes.Repeat([]byte("x"), 5), 0o644))
	t.Chdir(b.dir)
	p := packer{w: tar.NewWriter(&shrinking{Buffer: &archive, name: "file"})}
	if err := p.addFile("file"); err != nil || p.skipped != 0 {
		t.Fatal(err, p.skipped)
	}
	b.must(p.w.Close())
	r := tar.NewReader(&archive)
	if h, err := r.Next(); err != nil || h.Size != 5 {
		t.Fatal(h, err)
	}
	if data, err := io.ReadAll(r); err != nil || !bytes.Equal(data, make([]byte, 5)) {
		t.Errorf("%q, %v", data, err)
	}
}

// shrinking empties a file when the header of an archive is written.
type shrinking struct {
	*bytes.Buffer
	name string
}

func (s *shrinking) Write(p []byte) (int, error) {
	if err := os.Truncate(s.name, 0); err != nil {
		return 0, err
	}
	return s.Buffer.Write(p)
}

// FuzzUnpack unpacks random archives: nothing outside of the folder is created, changed or removed.
func FuzzUnpack(f *testing.F) {
	for _, entries := range [][]tar.Header{
		{dirEntry("d", 0o755), {Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o644}, linkEntry("l", "d/f")},
		{linkEntry("up", "../victim"), linkEntry("up/evil", "/etc")},
		{linkEntry("here", "."), linkEntry("here/away", "../victim"), {Name: "away/out", Typeflag: tar.TypeReg, Mode: 0o644}},
		{linkEntry("here", "."), dirEntry("here/sub", 0o777), linkEntry("here", "../victim")},
		{{Name: "../out", Typeflag: tar.TypeReg}},
	} {
		f.Add(archiveOf(f, entries...).Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("GNU.sparse")) {
			return // a few bytes can declare a huge file: in a box, the disk limit applies
		}
		top := newDir(t)
		victim := filepath.Join(top, "victim", "sub")
		if err := os.MkdirAll(victim, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = unpack(filepath.Join(top, "to"), bytes.NewReader(data))
		fi, err := os.Stat(victim)
		inside, erri := os.ReadDir(victim)
		around, erra := os.ReadDir(top)
		if errors.Join(err, erri, erra) != nil || fi.Mode().Perm() != 0o700 || len(inside) > 0 ||
			slices.ContainsFunc(around, func(e fs.DirEntry) bool { return e.Name() != "victim" && e.Name() != "to" }) {
			t.Errorf("outside of the folder there are %v, %v, of permissions %v", around, inside, fi.Mode())
		}
	})
}

// TestAttackArchivesOfRootChangeNoOtherDirectories: a link in a directory, there before or put there meanwhile, leads no permissions of root's
// archive elsewhere.
func TestAttackArchivesOfRootChangeNoOtherDirectories(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	closed := t.TempDir()
	t.Chdir(t.TempDir())
	if err := errors.Join(os.Chmod(closed, 0o700), os.Symlink(closed, "link")); err != nil {
		t.Fatal(err)
	}
	late := unpacker{dirs: []deferredEntry{{at: "link", mode: 0o777}}}
	if err := late.setModes(); err == nil {
		t.Error("a late link was followed")
	}
	var u unpacker
	for _, name := range []string{"link/", "made/"} {
		if err := u.addEntry(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o777}); err != nil {
			t.Error(err)
		}
	}
	if err := u.setModes(); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]fs.FileMode{closed: 0o700, "made": 0o777} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, fi.Mode(), err, want)
		}
	}
}
