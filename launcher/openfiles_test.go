package launcher

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/boxfs/worker"
	"boxgate/launcher/furnish"
	"boxgate/policy"
)

// openFiles starts a session that ends with the test.
func openFiles(t *testing.T, l *Launcher, id policy.BoxID) *boxfs.Session {
	t.Helper()
	s, done, err := l.OpenFiles(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return s
}

func write(s *boxfs.Session, path, content string) error {
	return s.Send(worker.Request{Op: worker.OpWrite, Path: []byte(path)}, strings.NewReader(content))
}

func read(s *boxfs.Session, path string) (string, error) {
	_, r, err := s.Read(path, 0, 1<<20)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(r)
	return string(data), err
}

// TestFilesAreReachedAsTheUserOfTheBox: what boxuser may do, and no more; what is made is boxuser's.
func TestFilesAreReachedAsTheUserOfTheBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	run(t, l, id, ExecSpec{User: "root", Args: []string{"sh", "-c", `
		echo of-root > /root-only; chmod 600 /root-only
		echo writable > /etc/shared; chmod 666 /etc/shared
		mkdir /kept; echo x > /kept/x`}})
	s := openFiles(t, l, id)
	for _, path := range []string{"/workspace/home/a", "/tmp/a", "/dev/shm/a", "/workspace/home/deep/er/a"} {
		if err := write(s, path, "content"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := sh(t, l, id, "stat -c '%U %G %a %s' "+path); got.out != "boxuser boxuser 644 7\n" {
			t.Errorf("%s: %+v", path, got)
		}
		if got, err := read(s, path); got != "content" || err != nil {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if _, err := read(s, "/root-only"); !errors.Is(err, unix.EACCES) {
		t.Errorf("reading a file of root's: %v", err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte("/kept"), Recursive: true}); !errors.Is(err, unix.EACCES) {
		t.Errorf("removing a directory of root's: %v", err)
	}
	if err := write(s, "/etc/shared", "changed"); err != nil {
		t.Error(err)
	}
	if got := sh(t, l, id, "cat /etc/shared /kept/x; stat -c '%U %a' /etc/shared; ls -A /workspace/home"); got.out != "changedx\nroot 666\na\ndeep\n" {
		t.Errorf("%+v", got)
	}
	if err := write(s, "/etc/new", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a new file in a directory of root's: %v", err)
	}
	l.mustNotSeeWorkers(t, id)
}

// mustNotSeeWorkers fails if a process of the box sees the one that works on its files.
func (l *Launcher) mustNotSeeWorkers(t *testing.T, id policy.BoxID) {
	t.Helper()
	got := sh(t, l, id, `grep -al 'boxgate-file[s]' /proc/[0-9]*/cmdline; true`)
	if got.out != "" {
		t.Errorf("the box sees the worker: %+v", got)
	}
}

// TestWorkersShowNothingOfTheHostsNamespaces: procfs and sysfs show a process its own, whoever's mounts they are.
func TestWorkersShowNothingOfTheHostsNamespaces(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, "mkdir links; ln -s /proc/sys/kernel/hostname links/name; ln -s /proc/sys/net/ipv4/conf links/conf; ln -s /sys/class/net links/net")
	s := openFiles(t, l, id)
	for _, path := range []string{"/proc/sys/kernel/hostname", "links/name", "/proc/sys/net/ipv4/conf/lo/forwarding", "links/conf/lo/forwarding", "/proc/mounts", "/sys/class/net/lo/mtu"} {
		path = under(path)
		if got, err := read(s, path); err == nil {
			t.Errorf("%s: %q was read", path, got)
		}
	}
	for _, path := range []string{"/proc", "/proc/sys/net/ipv4/conf", "links/conf", "/sys/class/net", "links/net", "/dev/pts"} {
		at := []byte(under(path))
		for _, req := range []worker.Request{{Op: worker.OpList, Path: at, Most: 10}, {Op: worker.OpStat, Path: at, Follow: true}, {Op: worker.OpPack, Path: at}} {
			if a, err := s.Do(req); !errors.Is(err, unix.EACCES) {
				t.Errorf("%s of %s: %+v, %v", req.Op, at, a, err)
			}
		}
	}
	a, err := s.Do(worker.Request{Op: worker.OpList, Path: []byte(under("links")), Most: 10})
	if err != nil || len(a.Entries) != 3 || a.Entries[0].IsDir {
		t.Errorf("links into the kernel's file systems are listed as %+v, %v", a.Entries, err)
	}
	for _, path := range []string{"/", "/dev/shm", "/etc/hostname"} {
		if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte(path)}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// under makes a path absolute, as seen from the home directory.
func under(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return furnish.Home + "/" + path
}

// TestWorkersCountAsTheBox: in every hierarchy of control groups.
func TestWorkersCountAsTheBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	openFiles(t, l, id)
	dirs, err := l.cgroup(id).Dirs()
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		data, err := os.ReadFile(dir + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(strings.Fields(string(data)), func(pid string) bool {
			name, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			return strings.HasPrefix(string(name), worker.Name)
		}) {
			t.Errorf("%s has no worker: %s", dir, data)
		}
	}
}

// TestWorkersHaveNoPower: another user than root, no capability, no descriptor but the streams, the box's root.
func TestWorkersHaveNoPower(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	s := openFiles(t, l, id)
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil { // it has entered by now
		t.Fatal(err)
	}
	r, err := l.load(id)
	if err != nil {
		t.Fatal(err)
	}
	user := r.ids().Host(furnish.UID)
	pid := s.Pid()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", user, user, user, user), fmt.Sprintf("Gid:\t%d\t%d\t%d\t%d\n", user, user, user, user),
		"Groups:\t \n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("not %q in %s", want, status)
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if fd.Name() > "2" && !strings.HasPrefix(to, "anon_inode:") || fd.Name() <= "2" && !strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(environ) > 100 {
		t.Errorf("environment %q, %v", environ, err)
	}
}

// TestContentThatBreaksOffChangesNothing: neither the target nor the directory.
func TestContentThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	if err := write(openFiles(t, l, id), "/workspace/home/old", "old"); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the client has gone")
	for _, path := range []string{"/workspace/home/old", "/workspace/home/new", "/workspace/home/some/where/new"} {
		s := openFiles(t, l, id)
		err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte(path)}, io.MultiReader(strings.NewReader(strings.Repeat("x", 3<<20)), failing{gone}))
		if !errors.Is(err, gone) {
			t.Errorf("%s: %v", path, err)
		}
		s.Close()
	}
	if got := sh(t, l, id, "cat old; find . -type f"); got.out != "old./old\n" {
		t.Errorf("%+v", got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestWriteKeepsWhatAFileIs: a link at the target is followed, permissions stay, other names of the file see the content.
func TestWriteKeepsWhatAFileIs(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, `
		echo old > script; chmod 750 script; ln -s script link; ln -s ../home/link link2; ln -s /tmp/dangling dangling; ln -s loop loop
		echo old > one; ln one two; mkfifo pipe; mkdir dir`)
	s := openFiles(t, l, id)
	for _, name := range []string{"link2", "two", "dangling"} {
		if err := write(s, "/workspace/home/"+name, "new\n"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	got := sh(t, l, id, `cat script one two /tmp/dangling; stat -c %a script; readlink link2; stat -c %h one; ls -A | tr '\n' ' '`)
	if got.out != "new\nnew\nnew\nnew\n750\n../home/link\n2\ndangling dir link link2 loop one pipe script two " {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]error{
		"loop": unix.ELOOP, "pipe": unix.EINVAL, "dir": unix.EISDIR, "dir/": unix.EISDIR, "dir/.": unix.EISDIR, "dir/..": unix.EISDIR,
		"script/x": unix.ENOTDIR, strings.Repeat("n", 256): unix.ENAMETOOLONG, "../../dev/null": unix.EINVAL,
	} {
		s, done, err := l.OpenFiles(t.Context(), id) // a refusal may end it
		if err != nil {
			t.Fatal(err)
		}
		if err := write(s, "/workspace/home/"+name, "new\n"); !errors.Is(err, want) {
			t.Errorf("writing %q: %v, want %v", name, err, want)
		}
		done()
	}
}

// TestOddFiles: what reading could block on is refused at once, and odd names come back as they are.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, `mkfifo pipe; mkdir dir; truncate -s 1T sparse; ln -s /proc/self/root/etc magic; ln -s nowhere dangling; ln -s dir link
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
		python3 -c 'import os
for n in (b"\xff\xfe", b"new\nline", b"\x1b[31m", b"n"*255): open(n, "w").close()'`)
	s := openFiles(t, l, id)
	for path, want := range map[string]error{
		"/workspace/home/pipe": unix.EINVAL, "/workspace/home/socket": unix.EINVAL, "/workspace/home/dir": unix.EISDIR, "/dev/zero": unix.EINVAL,
		"/dev/tty": unix.EINVAL, "/proc/1/fd/0": unix.EACCES, "/proc/1/comm": unix.EACCES, "/proc/self/status": unix.ENOENT, "/workspace/home/magic/passwd": unix.ENOENT,
		"/workspace/home/dangling": unix.ENOENT,
	} {
		if got, err := read(s, path); !errors.Is(err, want) {
			t.Errorf("reading %s: %.40q, %v, want %v", path, got, err, want)
		}
	}
	if _, r, err := s.Read("/workspace/home/sparse", 1<<40-2, 10); err != nil {
		t.Error(err)
	} else if data, err := io.ReadAll(r); string(data) != "\x00\x00" || err != nil {
		t.Errorf("the end of a sparse file: %q, %v", data, err)
	}
	a, err := s.Do(worker.Request{Op: worker.OpList, Path: []byte("/workspace/home"), Most: 100})
	if err != nil || a.Truncated {
		t.Fatal(a, err)
	}
	var names []string
	kinds := map[string]string{}
	for _, e := range a.Entries {
		names = append(names, string(e.Name))
		kinds[string(e.Name)] = fmt.Sprint(e.Type, " ", e.IsDir)
	}
	if want := []string{"\x1b[31m", "dangling", "dir", "link", "magic", "new\nline", strings.Repeat("n", 255), "pipe", "socket", "sparse", "\xff\xfe"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if kinds["link"] != "symlink true" || kinds["dangling"] != "symlink false" || kinds["pipe"] != "other false" {
		t.Error(kinds)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte("/workspace/home/\xff\xfe")}); err != nil {
		t.Error(err)
	}
}

// TestLargeDirectoriesAreBounded: a list has as many entries as asked for and says that there are more, and removing a deep
// tree takes no more descriptors than a worker has.
func TestLargeDirectoriesAreBounded(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, `mkdir many && cd many && seq 20000 | xargs touch; cd ..; python3 -c 'import os
for i in range(3000):
  os.mkdir("d"); os.chdir("d")'`)
	s := openFiles(t, l, id)
	a, err := s.Do(worker.Request{Op: worker.OpList, Path: []byte("/workspace/home/many"), Most: 5000})
	if err != nil || !a.Truncated || len(a.Entries) != 5000 {
		t.Errorf("%d entries, truncated %v, %v", len(a.Entries), a.Truncated, err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte("/workspace/home/d")}); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("removing a directory that is not empty: %v", err)
	}
	for _, name := range []string{"many", "d"} {
		if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte("/workspace/home/" + name), Recursive: true}); err != nil {
			t.Errorf("removing %s: %v", name, err)
		}
	}
	if got := sh(t, l, id, "ls -A"); got.out != "" {
		t.Errorf("%+v", got)
	}
}

// TestSessionsOfABoxTakeTurns: one more than a box has waits, and those of other boxes do not.
func TestSessionsOfABoxTakeTurns(t *testing.T) {
	t.Parallel()
	var turns boxfs.Turns
	var ends []func()
	for range boxfs.PerBox {
		done, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, done)
	}
	var waits sync.WaitGroup
	waits.Go(func() {
		done, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Error(err)
			return
		}
		done()
	})
	done, err := turns.Take(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	done()
	ends[0]()
	waits.Wait()
	for _, end := range ends {
		end()
	}
}

// TestSessionEndsWithItsContext: whatever it is doing.
func TestSessionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	s := openFiles(t, l, id)
	slow, feed := io.Pipe()
	defer feed.Close()
	time.AfterFunc(100*time.Millisecond, func() { feed.CloseWithError(io.ErrUnexpectedEOF) })
	if err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/tmp/x")}, slow); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err == nil {
		t.Error("a session goes on after content that broke off")
	}
}

// TestArchives: a directory comes back as it was, and an archive makes nothing outside of the folder.
func TestArchives(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sh(t, l, id, `mkdir -p from/sub from/sealed from/empty; echo run > from/sub/tool; chmod 755 from/sub/tool; ln -s /etc/hostname from/link
		echo in > from/sealed/in; chmod 500 from/sealed; mkfifo from/pipe; echo secret > from/unreadable; chmod 0 from/unreadable`)
	s := openFiles(t, l, id)
	archive, err := s.Pack("/workspace/home/from/sub/..")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Skipped(); n != 2 || err != nil {
		t.Errorf("%d skipped, %v", n, err)
	}
	for range 2 { // the second time over what is there
		if err := s.Send(worker.Request{Op: worker.OpUnpack, Path: []byte("/workspace/home/to")}, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		run(t, l, id, ExecSpec{Args: []string{"chmod", "700", "to/sealed"}})
	}
	got := sh(t, l, id, `cd to; find . | sort | tr '\n' ' '; readlink link; stat -c %a sub/tool; cat sub/tool sealed/in`)
	if got.out != ". ./empty ./link ./sealed ./sealed/in ./sub ./sub/tool /etc/hostname\n755\nrun\nin\n" {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"../out", "/tmp/out", "a/../../out", ""} {
		var evil bytes.Buffer
		w := tar.NewWriter(&evil)
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		s, done, err := l.OpenFiles(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(worker.Request{Op: worker.OpUnpack, Path: []byte("/workspace/home/to")}, &evil); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q in an archive: %v", name, err)
		}
		done()
	}
	for _, to := range []string{"/tmp", "../../../tmp", "in/../../../../tmp"} {
		var evil bytes.Buffer
		w := tar.NewWriter(&evil)
		for _, h := range []tar.Header{
			{Name: "in", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "here", Typeflag: tar.TypeSymlink, Linkname: "."},
			{Name: "here/away", Typeflag: tar.TypeSymlink, Linkname: to},
			{Name: "away/out", Typeflag: tar.TypeReg, Mode: 0o644},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if err := openFiles(t, l, id).Send(worker.Request{Op: worker.OpUnpack, Path: []byte("/workspace/home/to")}, &evil); !errors.Is(err, unix.EEXIST) {
			t.Errorf("through its own link to %s: %v", to, err)
		}
		sh(t, l, id, "rm -r to/away")
	}
	if got := sh(t, l, id, "ls /tmp /workspace/home"); got.out != "/tmp:\n\n/workspace/home:\nfrom\nto\n" {
		t.Errorf("%+v", got)
	}
}

// Nothing is made or changed where a link of the archive leads that is made late, because it leads out of the folder: not by
// another such link, nor by the permissions of a directory.
func TestArchivesDoNotFollowTheirLateLinks(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o777} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for name, c := range map[string]struct {
		archive []tar.Header
		want    string // of the folder, if the archive is not refused
	}{
		"a link below another":               {[]tar.Header{link("up", "../victim"), link("up/evil", "/etc")}, ""},
		"a link below one that leads to it":  {[]tar.Header{link("near", "up"), link("up", "../victim"), link("near/evil", "/etc")}, ""},
		"a link below one that was replaced": {[]tar.Header{dir("sub"), link("here", "sub"), link("here", "../victim"), link("here/sub/evil", "/etc")}, "here sub sub/sub sub/sub/evil"},
		"permissions":                        {[]tar.Header{link("here", "."), dir("here/sub"), link("here", "../victim")}, "here sub"},
	} {
		sh(t, l, id, "rm -rf victim to; mkdir -p victim/sub; chmod 700 victim/sub")
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range c.archive {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		err := openFiles(t, l, id).Send(worker.Request{Op: worker.OpUnpack, Path: []byte("/workspace/home/to")}, &archive)
		if (err != nil) != (c.want == "") {
			t.Errorf("%s: %v", name, err)
		}
		got := sh(t, l, id, "find victim | sort | tr '\\n' ' '; stat -c %a victim/sub; cd to; find . -mindepth 1 | sort | cut -c3- | tr '\\n' ' '")
		if outside, inside, _ := strings.Cut(got.out, "\n"); outside != "victim victim/sub 700" || c.want != "" && strings.TrimSpace(inside) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
