package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestContentThatBreaksOffChangesNothing: incomplete content changes neither the target nor the directory.
func TestContentThatBreaksOffChangesNothing(t *testing.T) {
	b := newBox(t)
	if err := b.write("old", "old"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"old", "new", "some/where/new"} {
		b.must(Send(b.in, Request{Op: OpWrite, Path: b.at(name)}))
		w := &ContentWriter{W: b.in}
		if _, err := io.WriteString(w, strings.Repeat("x", 3<<20)); err != nil {
			t.Fatal(err)
		}
		b.in.Close() // the session ends
		if _, err := b.answer(); !errors.Is(err, io.ErrUnexpectedEOF) && (err == nil || !strings.Contains(err.Error(), "unexpected EOF")) {
			t.Errorf("%s: %v", name, err)
		}
		if b.stop() == nil {
			t.Errorf("%s: the worker continues", name)
		}
		b.start()
	}
	b.has("old", "old")
	var found []string
	b.must(filepath.Walk(b.dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			found = append(found, path)
		}
		return err
	}))
	if len(found) != 1 {
		t.Errorf("files: %q", found)
	}
}

// TestWriteKeepsWhatAFileIs: a link at the target is followed, permissions stay, and other names of the file show the
// content.
func TestWriteKeepsWhatAFileIs(t *testing.T) {
	b := newBox(t)
	in := func(name string) string { return filepath.Join(b.dir, name) }
	b.must(os.Mkdir(in("home"), 0o755), os.WriteFile(in("home/script"), []byte("old"), 0o600), os.Chmod(in("home/script"), 0o750),
		os.Symlink("script", in("home/link")), os.Symlink("../home/link", in("home/link2")), os.Symlink(in("dangles"), in("home/dangling")),
		os.Symlink("loop", in("home/loop")), os.WriteFile(in("home/one"), []byte("longer than the new one"), 0o644), os.Link(in("home/one"), in("home/two")),
		unix.Mkfifo(in("home/pipe"), 0o644), os.Mkdir(in("home/dir"), 0o755), os.WriteFile(in("home/sealed"), []byte("old"), 0o444))
	for _, name := range []string{"link2", "two", "dangling"} {
		if err := b.write("home/"+name, "new"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"home/script", "home/one", "home/two", "dangles"} {
		b.has(name, "new")
	}
	if fi, err := os.Stat(in("home/script")); err != nil || fi.Mode() != 0o750 {
		t.Errorf("permissions %v, %v", fi.Mode(), err)
	}
	if to, err := os.Readlink(in("home/link2")); err != nil || to != "../home/link" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	for name, want := range map[string]error{
		"loop": unix.ELOOP, "pipe": unix.EINVAL, "dir": unix.EISDIR, "dir/": unix.EISDIR, "dir/.": unix.EISDIR, "dir/..": unix.EISDIR,
		"script/x": unix.ENOTDIR, strings.Repeat("n", 256): unix.ENAMETOOLONG, "../../../null": unix.EINVAL, "sealed": unix.EACCES,
	} {
		if err := b.write("home/"+name, "new"); !errors.Is(err, want) {
			t.Errorf("writing %q: %v, want %v", name, err, want)
		}
	}
	if entries, err := os.ReadDir(in("home")); err != nil || len(entries) != 10 {
		t.Errorf("after refusals there are %v, %v", entries, err)
	}
}

// TestPermissionsOfNewFiles: a new file has the requested permissions, 0644 by default.
func TestPermissionsOfNewFiles(t *testing.T) {
	b := newBox(t)
	for mode, want := range map[uint32]os.FileMode{0: 0o644, 0o600: 0o600, 0o755: 0o755, 0o4777: 0o777} {
		name := fmt.Sprintf("f%o", mode)
		if err := b.send(Request{Op: OpWrite, Path: b.at(name), Mode: mode}, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(b.dir + "/" + name); err != nil || fi.Mode() != want {
			t.Errorf("%o: %v, %v", mode, fi.Mode(), err)
		}
	}
	b.must(os.Mkdir(b.dir+"/sealed", 0o500))
	if err := b.write("sealed/new", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a new file in a directory that is not writable: %v", err)
	}
	if err := b.write("sealed/dir/new", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a new directory in one that is not writable: %v", err)
	}
}

// TestAttributesStay: a file with extended attributes is overwritten and not replaced, because a new file would not have
// them.
func TestAttributesStay(t *testing.T) {
	b := newBox(t)
	b.must(os.WriteFile(b.dir+"/file", []byte("old"), 0o644))
	if err := unix.Setxattr(b.dir+"/file", "user.origin", []byte("x"), 0); err != nil {
		t.Skip("the file system in memory has no attributes of users:", err)
	}
	if err := b.write("file", "new"); err != nil {
		t.Fatal(err)
	}
	b.has("file", "new")
	value := make([]byte, 8)
	if n, err := unix.Getxattr(b.dir+"/file", "user.origin", value); err != nil || string(value[:n]) != "x" {
		t.Errorf("the attribute is %q, %v", value[:max(n, 0)], err)
	}
}

// TestOddFiles: files that could block a reader are refused immediately, and odd names are returned unchanged.
func TestOddFiles(t *testing.T) {
	b := newBox(t)
	in := func(name string) string { return b.dir + "/" + name }
	b.must(unix.Mkfifo(in("pipe"), 0o644), os.Mkdir(in("dir"), 0o755), os.WriteFile(in("sparse"), nil, 0o644), os.Truncate(in("sparse"), 1<<40),
		os.Symlink("/proc/self/root/etc", in("magic")), os.Symlink("nowhere", in("dangling")), os.Symlink("dir", in("link")),
		os.WriteFile(in("secret"), nil, 0))
	for _, name := range []string{"\xff\xfe", "new\nline", "\x1b[31m", strings.Repeat("n", 255)} {
		b.must(os.WriteFile(in(name), nil, 0o644))
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: in("socket"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for path, want := range map[string]error{
		in("pipe"): unix.EINVAL, in("socket"): unix.EINVAL, in("dir"): unix.EISDIR, "/dev/zero": unix.EINVAL, "/proc/self/status": unix.EACCES,
		"/proc/sys/kernel/hostname": unix.EACCES, in("dangling"): unix.ENOENT, in("secret"): unix.EACCES,
	} {
		if _, got, err := b.read([]byte(path), 0, 100); !errors.Is(err, want) {
			t.Errorf("reading %s: %.40q, %v, want %v", path, got, err, want)
		}
	}
	if _, got, err := b.read(b.at("sparse"), 1<<40-2, 10); got != "\x00\x00" || err != nil {
		t.Errorf("the end of a sparse file: %q, %v", got, err)
	}
	a, err := b.do(Request{Op: OpList, Path: b.at(""), Most: 100})
	if err != nil || a.Truncated {
		t.Fatal(a, err)
	}
	var names []string
	kinds := map[string]string{}
	for _, e := range a.Entries {
		names = append(names, string(e.Name))
		kinds[string(e.Name)] = fmt.Sprint(e.Type, " ", e.IsDir)
	}
	if want := []string{"\x1b[31m", "dangling", "dir", "link", "magic", "new\nline", strings.Repeat("n", 255), "pipe", "secret", "socket", "sparse", "\xff\xfe"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if kinds["link"] != "symlink true" || kinds["dangling"] != "symlink false" || kinds["pipe"] != "other false" {
		t.Error(kinds)
	}
	if _, err := b.do(Request{Op: OpRemove, Path: b.at("\xff\xfe")}); err != nil {
		t.Error(err)
	}
}

// TestFilesOfTheKernel: a file system that the kernel generates is neither described, listed nor packed, and a link into
// one is listed like a dangling link.
func TestFilesOfTheKernel(t *testing.T) {
	b := newBox(t)
	b.must(os.Symlink("/proc/sys/net", b.dir+"/link"))
	for _, path := range []string{"/proc", "/proc/sys/kernel/hostname", "/sys", "/sys/class/net", b.dir + "/link"} {
		for _, req := range []Request{{Op: OpList, Path: []byte(path), Most: 10}, {Op: OpStat, Path: []byte(path), Follow: true}, {Op: OpPack, Path: []byte(path)}} { // packing procfs would not end
			if a, err := b.do(req); !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOTDIR) {
				t.Fatalf("%s of %s: %+v, %v", req.Op, path, a, err)
			}
		}
	}
	a, err := b.do(Request{Op: OpList, Path: b.at(""), Most: 10})
	if err != nil || len(a.Entries) != 1 || a.Entries[0].IsDir || a.Entries[0].Type != "symlink" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := b.do(Request{Op: OpStat, Path: b.at("link")}); err != nil || a.Info.Type != "symlink" {
		t.Errorf("%+v, %v", a.Info, err)
	}
}

// TestListsAreBounded: lists are bounded by the number of entries, and by the length of their names.
func TestListsAreBounded(t *testing.T) {
	b := newBox(t)
	b.must(os.Mkdir(b.dir+"/many", 0o755))
	long := strings.Repeat("n", 250)
	for i := range maxNames/255 + 10 {
		b.must(os.WriteFile(fmt.Sprintf("%s/many/%s%05d", b.dir, long, i), nil, 0o644))
	}
	a, err := b.do(Request{Op: OpList, Path: b.at("many"), Most: 300})
	if err != nil || !a.Truncated || len(a.Entries) != 300 {
		t.Errorf("%d entries, truncated %v, %v", len(a.Entries), a.Truncated, err)
	}
	a, err = b.do(Request{Op: OpList, Path: b.at("many"), Most: 1 << 20})
	if err != nil || !a.Truncated || len(a.Entries) != maxNames/255 {
		t.Errorf("%d entries, truncated %v, %v", len(a.Entries), a.Truncated, err)
	}
	if _, err := b.do(Request{Op: OpRemove, Path: b.at("many"), Recursive: true}); err != nil {
		t.Error(err)
	}
}

// TestAttributes: attributes are set, replaced and removed, described by stat and list within bounds, and refused where the kernel has none.
func TestAttributes(t *testing.T) {
	b := newBox(t)
	b.must(os.WriteFile(b.path("f"), []byte("x"), 0o644), os.Symlink("f", b.path("link")), os.Mkdir(b.path("d"), 0o755), os.WriteFile(b.path("sealed"), nil, 0o444))
	set := func(name string, attributes map[string]string, remove ...string) error {
		_, err := b.do(Request{Op: OpAttributes, Path: b.at(name), Attributes: attributes, Drop: remove})
		return err
	}
	of := func(name string, follow bool) map[string]string {
		a, err := b.do(Request{Op: OpStat, Path: b.at(name), Follow: follow})
		if err != nil {
			t.Fatal(err)
		}
		return a.Info.Attributes
	}
	if err := set("f", map[string]string{"a": "1", "e2b.b": "two\n\x1b"}); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system in memory has no attributes of users:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	b.must(set("link", map[string]string{"a": "new"}, "missing"), set("d", map[string]string{"dir": ""}), unix.Setxattr(b.path("f"), "user.bytes", []byte("\xff"), 0))
	if got := of("f", false); !maps.Equal(got, map[string]string{"a": "new", "e2b.b": "two\n\x1b"}) {
		t.Errorf("the file has %q", got)
	}
	if got, linked := of("link", false), of("link", true); got != nil || linked["a"] != "new" {
		t.Errorf("the link has %q, its target %q", got, linked)
	}
	if err := b.write("f", "written"); err != nil || of("f", false)["a"] != "new" {
		t.Errorf("after a write: %q, %v", of("f", false), err)
	}
	if err := set("f", nil, "a", "bytes"); err != nil || len(of("f", false)) != 1 {
		t.Errorf("after a removal: %q, %v", of("f", false), err)
	}
	a, err := b.do(Request{Op: OpList, Path: b.at(""), Most: 10})
	if err != nil || len(a.Entries) != 4 || a.Entries[0].Attributes["dir"] != "" || len(a.Entries[1].Attributes) != 1 {
		t.Errorf("listed: %+v, %v", a.Entries, err)
	}
	for name, want := range map[string]error{"missing": unix.ENOENT, "sealed": unix.EACCES, "../../../proc/version": unix.EACCES} {
		if err := set(name, map[string]string{"a": "b"}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// TestAttributesAreBounded: a file with as many attributes as the kernel allows shows a bounded part of them, and a list of such files too.
func TestAttributesAreBounded(t *testing.T) {
	b := newBox(t)
	for i := range 200 {
		name := b.path(fmt.Sprint(i))
		b.must(os.WriteFile(name, nil, 0o644))
		for k := range 70 {
			if err := unix.Setxattr(name, fmt.Sprintf("user.%d", k), bytes.Repeat([]byte("v"), 1000), 0); err != nil {
				if k > 0 || i > 0 {
					break // as many as the file system holds
				}
				t.Skip("the file system in memory has no attributes of users:", err)
			}
		}
	}
	a, err := b.do(Request{Op: OpList, Path: b.at(""), Most: 1000})
	if err != nil || len(a.Entries) != 200 {
		t.Fatal(len(a.Entries), err)
	}
	total := 0
	for _, e := range a.Entries {
		if n := sizeOf(e); n > maxAttributeBytes || len(e.Attributes) > maxAttributes {
			t.Errorf("%s has %d attributes of %d bytes", e.Name, len(e.Attributes), n)
		}
		total += sizeOf(e)
	}
	if total > maxExtras || total == 0 {
		t.Errorf("a list has %d bytes of attributes", total)
	}
}

// TestAttackLateLinksAreNotOverwritten: a link that replaces a file after its path was followed leads no content elsewhere.
func TestAttackLateLinksAreNotOverwritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept, link := dir+"/kept", dir+"/link"
	if err := errors.Join(os.WriteFile(kept, []byte("kept"), 0o600), os.WriteFile(dir+"/new", []byte("new"), 0o600), os.Symlink(kept, link)); err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(dir + "/new")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if err := overwrite(link, false, from); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
	if got, err := os.ReadFile(kept); string(got) != "kept" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
