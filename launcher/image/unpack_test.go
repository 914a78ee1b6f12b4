package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/files"
	"boxgate/launcher/launchertest"
)

// Short names for the helpers that the tests use all the time.
var (
	archive  = launchertest.Archive
	file     = launchertest.File
	dir      = launchertest.Dir
	link     = launchertest.Link
	hardlink = launchertest.Hardlink
)

type entry = launchertest.Entry

// unpackInto applies layers to a directory beside a file that no archive may touch.
func unpackInto(t testing.TB, layers ...[]byte) (rootfs string, err error) {
	t.Helper()
	top := t.TempDir()
	rootfs = filepath.Join(top, "rootfs")
	for _, p := range []string{rootfs, filepath.Join(top, "victim")} {
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(top, "victim", "file"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u := &unpacker{root: root}
	for _, l := range layers {
		if err = errors.Join(err, u.layer(t.Context(), bytes.NewReader(l))); err != nil {
			break
		}
	}
	entries, rerr := os.ReadDir(top)
	victims, verr := os.ReadDir(filepath.Join(top, "victim"))
	content, cerr := os.ReadFile(filepath.Join(top, "victim", "file"))
	if errors.Join(rerr, verr, cerr) != nil || len(entries) != 2 || len(victims) != 1 || string(content) != "untouched" {
		t.Errorf("the archive reached out of its directory: %v %v %q", entries, victims, content)
	}
	return rootfs, err
}

func TestUnpackRefusesToLeave(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]entry{
		"dot dot":                  {file("../victim/file", "owned")},
		"dot dot inside":           {file("a/../../victim/file", "owned")},
		"link up, then through it": {link("out", "../victim"), file("out/file", "owned")},
		"link up twice":            {link("a", "b"), link("b", "../.."), file("a/victim/file", "owned")},
		"deep link up":             {dir("d"), link("d/out", "../../victim"), file("d/out/file", "owned")},
		"hard link out":            {hardlink("h", "../victim/file"), file("h", "owned")},
		"hard link through a link": {link("out", "../victim"), hardlink("h", "out/file")},
		"link to itself":           {link("loop", "loop"), file("loop/x", "owned")},
		"whiteout out":             {link("out", "../victim"), file("out/.wh.file", "")},
		"opaque out":               {link("out", "../victim"), file("out/.wh..wh..opq", "")},
		"whiteout of dot dot":      {dir("d"), file("d/.wh...", "")},
		"directory over link out":  {link("out", "../victim"), entry{Header: tar.Header{Name: "out", Typeflag: tar.TypeDir, Mode: 0o777}, Content: ""}, file("out/file", "x")},
		"file over link out":       {link("out", "../victim/file"), file("out", "owned")},
		"absolute":                 {file("/victim/file", "x")},
		"absolute link":            {link("abs", "/victim"), file("abs/file", "x")},
	} {
		_, err := unpackInto(t, archive(t, entries...)) // it makes the checks
		if strings.HasPrefix(name, "dot dot") && err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

func TestUnpackKeepsAbsoluteNamesInside(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	rootfs, err := unpackInto(t, archive(t, file("/etc/a", "1"), link("var/run", "/run"), file("var/run/pid", "2"), file("./etc/b", "3")))
	if err != nil {
		t.Fatal(err)
	}
	for p, content := range map[string]string{"etc/a": "1", "run/pid": "2", "etc/b": "3"} {
		if got, err := os.ReadFile(filepath.Join(rootfs, p)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
}

func TestUnpackLeavesDevicesOut(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dev := func(name string, kind byte) entry {
		return entry{Header: tar.Header{Name: name, Typeflag: kind, Devmajor: 1, Devminor: 3}, Content: ""}
	}
	rootfs, err := unpackInto(t, archive(t, dev("char", tar.TypeChar), dev("block", tar.TypeBlock), dev("fifo", tar.TypeFifo), file("ok", "")))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(rootfs)
	if err != nil || len(entries) != 1 || entries[0].Name() != "ok" {
		t.Errorf("%v %v", entries, err)
	}
}

func TestUnpackAppliesLayers(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	rootfs, err := unpackInto(t,
		archive(t, dir("keep"), file("keep/a", "a"), file("keep/b", "b"), dir("opaque"), file("opaque/old", ""), dir("gone"), file("gone/x", ""),
			entry{Header: tar.Header{Name: "suid", Mode: 0o4755, Uid: 3, Gid: 4}, Content: "x"}, hardlink("twin", "suid"), link("l", "keep"), file("becomes-dir", "")),
		archive(t, file("keep/.wh.a", ""), file("opaque/new", ""), file("opaque/.wh..wh..opq", ""), file(".wh.gone", ""), dir("becomes-dir"),
			file("becomes-dir/inside", ""), file("l", "now a file")),
	)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := filepath.WalkDir(rootfs, func(p string, _ fs.DirEntry, err error) error {
		got = append(got, strings.TrimPrefix(p, rootfs))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(got, " "); text != " /becomes-dir /becomes-dir/inside /keep /keep/b /l /opaque /opaque/new /suid /twin" {
		t.Errorf("%s", text)
	}
	fi, err := os.Stat(filepath.Join(rootfs, "twin"))
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	if fi.Mode()&fs.ModeSetuid == 0 || st.Uid != 3 || st.Gid != 4 || st.Nlink != 2 || fi.ModTime().Unix() != 1_000_000_000 {
		t.Errorf("attributes lost: %v %+v", fi.Mode(), st)
	}
}

func TestBrokenArchiveIsAnError(t *testing.T) {
	t.Parallel()
	whole := archive(t, file("a", strings.Repeat("x", 5000)))
	if _, err := unpackInto(t, whole[:3000]); err == nil {
		t.Error("half an archive was accepted")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, link("out", "../victim"), file("out/file", "owned")))
	f.Add(archive(f, dir("a"), link("a/b", "/a"), hardlink("c", "a/b"), file("a/.wh..wh..opq", "")))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = unpackInto(t, data) })
}

func TestUnpackRefusesPathsBeyondThoseOfLinux(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	long := strings.Repeat(strings.Repeat("d", 199)+"/", 20)
	for name, c := range map[string]struct {
		entries []entry
		refused bool
	}{
		"nearly as long as can be": {[]entry{file(long+"f", "")}, false},
		"too long":                 {[]entry{file(long+long+"f", "")}, true},
		"through a link":           {[]entry{dir(long), link("l", long), file("l/"+long+"f", "")}, true},
	} {
		rootfs, err := unpackInto(t, archive(t, c.entries...))
		if (err != nil) != c.refused {
			t.Errorf("%s: %.200v", name, err)
		}
		if err := files.RemoveTree(t.Context(), rootfs); err != nil {
			t.Error(err)
		}
	}
	gone := archive(t, file(".wh."+strings.Repeat("d", 199), ""), file("kept", ""))
	rootfs, err := unpackInto(t, archive(t, file(long+"f", "")), gone)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(rootfs)
	if err != nil || !slices.EqualFunc(names, []string{"kept"}, func(e os.DirEntry, n string) bool { return e.Name() == n }) {
		t.Errorf("a deep directory under a whiteout: %v, %v", names, err)
	}
}
