package boxfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs/worker"
)

// user is the user of the boxes in tests.
const user = 65534

// newRoot makes the root of a box on a tmpfs, which is an accepted type: its home and /tmp belong to the user, the rest to
// root.
func newRoot(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can confine a process to the root of a box")
	}
	dir, err := os.MkdirTemp("/dev/shm", "boxfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{worker.Home, "/tmp"} {
		if err := errors.Join(os.MkdirAll(dir+name, 0o755), os.Chown(dir+name, user, user)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openDir(t *testing.T, dir string) *os.File {
	t.Helper()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// open opens a session that ends with the test.
func open(t *testing.T, dir string) *Session {
	t.Helper()
	s, err := Open(t.Context(), Config{Root: openDir(t, dir), UID: user, GID: user, Join: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func write(s *Session, path, content string) error {
	return s.Send(worker.Request{Op: worker.OpWrite, Path: []byte(path)}, strings.NewReader(content))
}

func read(s *Session, path string) (string, error) {
	_, r, err := s.Read(path, 0, 1<<20)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(r)
	return string(data), err
}

// TestSession: a session sees only the root of the box, with the permissions of the box's user.
func TestSession(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	for name, mode := range map[string]os.FileMode{"root-only": 0o600, "shared": 0o666} {
		if err := errors.Join(os.WriteFile(dir+"/"+name, []byte("old"), 0o600), os.Chmod(dir+"/"+name, mode)); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir() + "/outside"
	if err := errors.Join(os.WriteFile(outside, []byte("of the host"), 0o644), os.Symlink(outside, dir+"/link")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := write(s, worker.Home+"/deep/er/a", "content"); err != nil {
		t.Fatal(err)
	}
	if got, err := read(s, "/workspace/../../../workspace/home/deep/er/a"); got != "content" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+worker.Home+"/deep/er/a", &st); err != nil || st.Uid != user || st.Gid != user || st.Mode&0o777 != 0o644 {
		t.Errorf("%+v, %v", st, err)
	}
	for path, want := range map[string]error{"/root-only": unix.EACCES, outside: unix.ENOENT, "/link": unix.ENOENT, "/proc/self/status": unix.ENOENT} {
		if got, err := read(s, path); !errors.Is(err, want) {
			t.Errorf("reading %s: %q, %v", path, got, err)
		}
	}
	if err := write(s, "/shared", "new"); err != nil { // it cannot be replaced, because root owns its directory
		t.Error(err)
	}
	if data, err := os.ReadFile(dir + "/shared"); string(data) != "new" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	if entries, err := os.ReadDir(dir + worker.Home); err != nil || len(entries) != 1 {
		t.Errorf("temporary files stay: %v, %v", entries, err)
	}
	if err := write(s, "/new", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a new file in a directory of root's: %v", err)
	}
}

// TestArchivesOfASession: a directory is packed and unpacked, and unreadable files are counted.
func TestArchivesOfASession(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	if err := os.WriteFile(dir+"/tmp/of-root", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	large := strings.Repeat("x", 3*worker.MaxChunk+1)
	if err := write(s, "/tmp/large", large); err != nil {
		t.Fatal(err)
	}
	archive, err := s.Pack("/tmp")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Skipped(); n != 1 || err != nil {
		t.Errorf("%d skipped, %v", n, err)
	}
	if err := s.Send(worker.Request{Op: worker.OpUnpack, Path: []byte(worker.Home + "/to")}, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if got, err := read(s, worker.Home+"/to/large"); got != large || err != nil {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if _, err := s.Pack("/nowhere"); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	if _, _, err := s.Read("/tmp", 0, 1); !errors.Is(err, unix.EISDIR) {
		t.Error(err)
	}
	if a, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/tmp/large")}); err != nil || a.Info.Size != int64(len(large)) {
		t.Errorf("the session does not go on: %v", err)
	}
}

// TestLargeDirectoriesAreBounded: a list has as many entries as requested and reports that there are more, and removing a
// deep tree needs no more descriptors than a worker may have.
func TestLargeDirectoriesAreBounded(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	for _, name := range []string{"/tmp/many", "/tmp/d"} {
		if err := errors.Join(os.Mkdir(dir+name, 0o755), os.Chown(dir+name, user, user)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20_000 {
		if err := os.WriteFile(fmt.Sprintf("%s/tmp/many/%d", dir, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	at := "/tmp/d"
	for range 3000 / 300 { // paths are bounded: each part is made in one directory and moved below the next
		part := strings.Repeat("/d", 299)
		if _, err := s.Do(worker.Request{Op: worker.OpMakeDir, Path: []byte("/tmp/next" + part), Parents: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(worker.Request{Op: worker.OpRename, Path: []byte(at), To: []byte("/tmp/next" + part + "/d")}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(worker.Request{Op: worker.OpRename, Path: []byte("/tmp/next"), To: []byte(at)}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := s.Do(worker.Request{Op: worker.OpList, Path: []byte("/tmp/many"), Most: 5000})
	if err != nil || !a.Truncated || len(a.Entries) != 5000 {
		t.Errorf("%d entries, truncated %v, %v", len(a.Entries), a.Truncated, err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte(at)}); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("removing a directory that is not empty: %v", err)
	}
	for _, name := range []string{"/tmp/many", at} {
		if _, err := s.Do(worker.Request{Op: worker.OpRemove, Path: []byte(name), Recursive: true}); err != nil {
			t.Errorf("removing %s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(dir + "/tmp"); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestSessionEndsWithItsContext: a session ends with its context, whatever it is doing.
func TestSessionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	s := open(t, dir)
	if err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/tmp/x")}, io.MultiReader(strings.NewReader("half"), failing{io.ErrUnexpectedEOF})); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err == nil {
		t.Error("a session continues after incomplete content")
	}
	s.Close()
	if entries, err := os.ReadDir(dir + "/tmp"); err != nil || len(entries) > 0 {
		t.Errorf("content that broke off left %v, %v", entries, err)
	}

	over := errors.New("the test is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := Open(ctx, Config{Root: openDir(t, dir), UID: user, GID: user, Join: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	content, feed := io.Pipe()
	done := make(chan error)
	go func() {
		done <- s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/tmp/x")}, content)
	}()
	if _, err := feed.Write([]byte("half")); err != nil { // it is writing
		t.Fatal(err)
	}
	cancel(over)
	go func() { // the client continues to send until it gets an error
		for err := error(nil); err == nil; {
			_, err = feed.Write([]byte("more"))
		}
	}()
	if err := <-done; !errors.Is(err, over) {
		t.Errorf("a call of a session that has ended: %v", err)
	}
	content.Close()
	s.Close()
	<-s.Ended()
	if entries, err := os.ReadDir(dir + "/tmp"); err != nil || len(entries) > 0 {
		t.Errorf("an ended session left %v, %v", entries, err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestSessionsThatCannotBegin: the error contains the reason why the worker has ended.
func TestSessionsThatCannotBegin(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	join := func(int) error { return nil }
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg   Config
		words string
	}{
		"root as the user":  {Config{Root: openDir(t, dir), UID: 0, GID: user, Join: join}, "no user to become"},
		"root as the group": {Config{Root: openDir(t, dir), UID: user, GID: 0, Join: join}, "no user to become"},
		"no directory":      {Config{Root: openDir(t, file), UID: user, GID: user, Join: join}, "cannot enter the box: not a directory"},
	} {
		s, err := Open(t.Context(), c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err = s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		<-s.Ended()
	}
	unjoined := errors.New("no control group")
	var pid int
	_, err := Open(t.Context(), Config{Root: openDir(t, dir), UID: user, GID: user, Join: func(p int) error { pid = p; return unjoined }})
	if !errors.Is(err, unjoined) {
		t.Error(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process that could not join is still there: %v", err)
	}
}

// TestAWorkerThatStandsStill: a stopped worker is killed, and has ended when Ended is closed.
func TestAWorkerThatStandsStill(t *testing.T) {
	t.Parallel()
	s := open(t, newRoot(t))
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.closeTimeout = 10 * time.Millisecond
	s.Close()
	<-s.Ended()
	if err := unix.Kill(s.Pid(), 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
}

// TestWorkersHaveNothingOfTheGateway: a worker has no capability, only the descriptors of the streams and the box's root,
// and no environment.
func TestWorkersHaveNothingOfTheGateway(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	leaked := openDir(t, dir)
	if _, err := unix.FcntlInt(leaked.Fd(), unix.F_SETFD, 0); err != nil { // like a library that forgets close-on-exec
		t.Fatal(err)
	}
	s := open(t, dir)
	if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil { // it has entered the box after this
		t.Fatal(err)
	}
	of := func(name string) string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.Pid(), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	status := of("status")
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", user, user, user, user), fmt.Sprintf("Gid:\t%d\t%d\t%d\t%d\n", user, user, user, user),
		"Groups:\t \n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("not %q in %s", want, status)
		}
	}
	for variable := range strings.SplitSeq(strings.TrimSuffix(of("environ"), "\x00"), "\x00") {
		if !strings.HasPrefix(variable, "GO") {
			t.Errorf("it has the variable %q", variable)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.Pid(), fd.Name()))
		if !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
}

// TestAttackUserDatabases: whatever a box puts in the place of its user databases, a description of a file is prompt and has an owner.
func TestAttackUserDatabases(t *testing.T) {
	dir := newRoot(t)
	s := open(t, dir)
	name := []byte("/tmp/f")
	if err := write(s, string(name), "x"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	for what, put := range map[string]func(path string) error{
		"a pipe": func(p string) error { return unix.Mkfifo(p, 0o644) }, "a directory": func(p string) error { return os.Mkdir(p, 0o755) },
		"a link to a device": func(p string) error { return os.Symlink("/dev/zero", p) }, "a link to itself": func(p string) error { return os.Symlink("passwd", p) },
		"a sparse file": func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o644), os.Truncate(p, 1<<40)) },
		"a long line":   func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("n", 1<<20)+":x:65534:\n"), 0o644) },
	} {
		if err := errors.Join(put(dir+"/etc/passwd"), put(dir+"/etc/group")); err != nil {
			t.Fatal(err)
		}
		a, err := s.Do(worker.Request{Op: worker.OpStat, Path: name})
		if err != nil || a.Info.Owner != fmt.Sprint(user) || a.Info.Group != fmt.Sprint(user) {
			t.Errorf("%s: %+v, %v", what, a.Info, err)
		}
		if err := errors.Join(os.RemoveAll(dir+"/etc/passwd"), os.RemoveAll(dir+"/etc/group")); err != nil {
			t.Fatal(err)
		}
	}
}
