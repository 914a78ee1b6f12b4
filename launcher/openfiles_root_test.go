package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs/worker"
	"boxgate/launcher/enter"
	"boxgate/policy"
)

// entersAs skips a test of another user's files if this program is dynamic, as with the race detector.
func entersAs(t *testing.T, user string) {
	t.Helper()
	self, err := enter.OpenSelf()
	if err == nil {
		err = self.Close()
	}
	if err != nil && user != "" {
		t.Skip(err)
	}
}

// statusOf returns the lines of /proc/PID/status that tell the credentials of a process.
func statusOf(status string) (lines []string) {
	for line := range strings.Lines(status) {
		switch name, _, _ := strings.Cut(line, ":"); name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters":
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// processesOf returns the processes in the control groups of a box, with their command lines.
func processesOf(t *testing.T, l *Launcher, id policy.BoxID) map[int]string {
	t.Helper()
	dirs, err := l.cgroup(id).Dirs()
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, dir := range dirs {
		below, err := filepath.Glob(dir + "/*/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range append(below, dir+"/cgroup.procs") {
			data, _ := os.ReadFile(file) // the control group of a command may have ended
			for pid := range strings.FieldsSeq(string(data)) {
				n, err := strconv.Atoi(pid)
				name, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				if err == nil {
					found[n] = string(name)
				}
			}
		}
	}
	return found
}

// member returns the process of a box whose command line begins with a name.
func member(t *testing.T, l *Launcher, id policy.BoxID, name string) int {
	t.Helper()
	for pid, line := range processesOf(t, l, id) {
		if strings.HasPrefix(line, name) {
			return pid
		}
	}
	t.Fatalf("the box has no process %s", name)
	return 0
}

// writeOnce writes a file as root in a session of its own, since a session ends with a write that fails.
func writeOnce(t *testing.T, l *Launcher, id policy.BoxID, path, content string) error {
	t.Helper()
	s, done, err := l.OpenFiles(t.Context(), id, "root")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	return write(s, path, content)
}

// TestFilesAsRoot: a session of the box's root does what a command as root may do. New files and directories are root's, and files of others
// keep their owner unless they are to become root's.
func TestFilesAsRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	rootSh(t, l, id, "echo secret > /root/only; chmod 600 /root/only; mkdir -m 700 /closed; echo x > /closed/x")
	sh(t, l, id, "echo old > mine; chmod 640 mine; echo old > two; ln two names; mkdir -m 700 private; echo x > private/f")
	s := openFilesAs(t, l, id, "root")
	for _, path := range []string{"/root/new", "/etc/deep/er/new", "/workspace/home/new", "/closed/new"} {
		if err := write(s, path, "content"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := rootSh(t, l, id, "stat -c '%U %G %a %s' "+path); got.out != "root root 644 7\n" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	for path, want := range map[string]string{"/root/only": "secret\n", "/closed/x": "x\n", "/workspace/home/private/f": "x\n"} {
		if got, err := read(s, path); got != want || err != nil {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := write(s, "/workspace/home/mine", "new"); err != nil {
		t.Error(err)
	}
	want(t, sh(t, l, id, "stat -c '%U %G %a' mine; cat mine"), "boxuser boxuser 640\nnew")
	for _, name := range []string{"mine", "two"} {
		if err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/workspace/home/" + name), Own: true}, strings.NewReader("roots")); err != nil {
			t.Error(err)
		}
	}
	want(t, rootSh(t, l, id, "cd /workspace/home; stat -c '%n %U %G %a %h' mine two; cat mine names"), "mine root root 640 1\ntwo root root 644 2\nrootsroots")
	a, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/workspace/home/private")})
	if err != nil || a.Info.Owner != "boxuser" || a.Info.UID != 1000 {
		t.Errorf("%+v, %v", a.Info, err)
	}
	for _, req := range []worker.Request{
		{Op: worker.OpMakeDir, Path: []byte("/opt/a/b"), Parents: true}, {Op: worker.OpRename, Path: []byte("/closed/x"), To: []byte("/opt/a/x")},
		{Op: worker.OpRemove, Path: []byte("/closed"), Recursive: true}, {Op: worker.OpList, Path: []byte("/root"), Most: 10},
		{Op: worker.OpAttributes, Path: []byte("/root/only"), Attributes: map[string]string{"a": "b"}},
	} {
		if _, err := s.Do(req); err != nil {
			t.Errorf("%s of %s: %v", req.Op, req.Path, err)
		}
	}
	want(t, rootSh(t, l, id, "stat -c %U /opt/a/b /opt/a/x; ! ls -d /closed 2>/dev/null"), "root\nroot")
	l.mustNotSeeWorkers(t, id)
	other := openFilesAs(t, l, id, "4242:4243")
	if err := write(other, "/tmp/other", "x"); err != nil {
		t.Error(err)
	}
	want(t, rootSh(t, l, id, "stat -c '%u %g' /tmp/other"), "4242 4243")
	if _, err := read(other, "/root/only"); !errors.Is(err, unix.EACCES) {
		t.Error(err)
	}
	if _, _, err := l.OpenFiles(t.Context(), id, "mallory"); err == nil {
		t.Error("a user by name was looked up")
	}
}

// TestWorkersOfRootHaveTheRightsOfCommands: a worker of root has the IDs, capabilities, limits of privileges and namespaces of a command as root,
// except that the box does not see it; no descriptor but its streams, and it counts as the box.
func TestWorkersOfRootHaveTheRightsOfCommands(t *testing.T) {
	t.Parallel()
	for _, l := range []*Launcher{newLauncher(t), rootLauncher(t)} {
		id := newBox(t, l, nil)
		sleep, err := l.Start(t.Context(), id, ExecSpec{User: "root", Args: []string{"sleep", "4242"}})
		if err != nil {
			t.Fatal(err)
		}
		command := member(t, l, id, "sleep")
		s := openFilesAs(t, l, id, "root")
		if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil {
			t.Fatal(err)
		}
		of := func(pid int, file string) string {
			t.Helper()
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		pid := s.Pid()
		if got, want := statusOf(of(pid, "status")), statusOf(of(command, "status")); !slices.Equal(got, want) || len(got) < 10 {
			t.Errorf("the worker: %q\nthe command: %q", got, want)
		}
		for _, ns := range []string{"user", "mnt", "net", "ipc", "uts", "cgroup"} {
			got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			want, cerr := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", command, ns))
			if err != nil || cerr != nil || got != want {
				t.Errorf("%s: %s, of a command %s: %v, %v", ns, got, want, err, cerr)
			}
		}
		if !strings.Contains(of(pid, "cgroup"), string(l.cgroup(id))) {
			t.Errorf("the worker is in %s", of(pid, "cgroup"))
		}
		if score := strings.TrimSpace(of(pid, "oom_score_adj")); score != strings.TrimSpace(of(command, "oom_score_adj")) {
			t.Errorf("the OOM score is %s", score)
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
		if environ := of(pid, "environ"); len(environ) > 100 {
			t.Errorf("environment %q", environ)
		}
		l.mustNotSeeWorkers(t, id)
		_, _ = exitOf(t.Context(), l, id, ExecSpec{User: "root", Args: []string{"sh", "-c", "kill -9 -1"}})
		if res, err := sleep.Wait(t.Context()); err != nil || res.Signal != unix.SIGKILL {
			t.Errorf("root of the box did not kill its processes: %+v, %v", res, err)
		}
		if _, err := s.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err != nil {
			t.Errorf("root of the box killed the worker: %v", err)
		}
	}
}

// TestAttackFilesOfRootLeadOut: whatever the box arranges, a path that root's worker follows ends in the box.
func TestAttackFilesOfRootLeadOut(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	outside := filepath.Join(t.TempDir(), "of-the-host")
	if err := os.WriteFile(outside, []byte("of the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := openFilesAs(t, l, id, "root")
	sh(t, l, id, `ln -s /proc/1/root up; ln -s /proc/self/root self; ln -s / top; mkfifo pipe; (sleep 600 &) 2>/dev/null >/dev/null </dev/null
		cp /bin/true suid; chmod 6777 suid; ln suid second; ln -s /etc/passwd /tmp/bait`)
	for _, at := range []string{
		outside, "/proc/1/root" + outside, "/proc/1/root/../.." + outside, "/proc/self/root" + outside, "/proc/1/cwd/../../../.." + outside,
		"/workspace/home/up" + outside, "/workspace/home/self" + outside, "/workspace/home/top/../../.." + outside, "/proc/thread-self/root" + outside,
	} {
		if got, err := read(s, at); err == nil && got != "changed" { // a directory of this name in the box
			t.Errorf("%s: %q was read", at, got)
		}
		_, _ = s.Do(worker.Request{Op: worker.OpRemove, Path: []byte(at), Recursive: true})
		_ = writeOnce(t, l, id, at, "changed")
	}
	if got, err := os.ReadFile(outside); string(got) != "of the host" || err != nil {
		t.Fatalf("a file of the host is %q, %v", got, err)
	}
	for path, want := range map[string]error{
		"/dev/zero": unix.EINVAL, "/workspace/home/pipe": unix.EINVAL, "/proc/1/environ": unix.EACCES, "/proc/1/mem": unix.EACCES, "/proc/sys/kernel/hostname": unix.EACCES,
		"/sys/kernel/uevent_helper": nil,
	} {
		if got, err := read(s, path); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %.40q, %v, want %v", path, got, err, want)
		}
		if err := writeOnce(t, l, id, path, "x"); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	// A program that takes its owner's rights loses them with its content, whether it becomes root's or not.
	for name, own := range map[string]bool{"suid": false, "second": true} {
		sh(t, l, id, "chmod 6777 suid")
		if err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/workspace/home/" + name), Own: own}, strings.NewReader("x")); err != nil {
			t.Error(err)
		}
		if got := sh(t, l, id, "stat -c '%A' suid"); !strings.HasPrefix(got.out, "-rwxrwxrwx") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if err := writeOnce(t, l, id, "/tmp/bait", "x"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a link of boxuser's in /tmp was followed: %v", err)
	}
	want(t, sh(t, l, id, "grep -q ^root: /etc/passwd && echo kept"), "kept")
}

// TestAttackLinksRaceFilesOfRoot: a path whose directory the box exchanges all the time leads to files of the box only.
func TestAttackLinksRaceFilesOfRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/f", []byte("of the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	sh(t, l, id, fmt.Sprintf(`mkdir real; echo inside > real/f; ln -s real at; ln -s /proc/1/root%s away; ln -s ../../../../../..%s far
		(while true; do ln -sfn real at; ln -sfn away at; ln -sfn far at; ln -sfn /proc/1/cwd at; done) </dev/null >/dev/null 2>&1 &`, outside, outside))
	s := openFilesAs(t, l, id, "root")
	for range 60 {
		if got, err := read(s, "/workspace/home/at/f"); err == nil && got != "inside\n" && got != "x" {
			t.Fatalf("%q was read", got)
		}
		_ = writeOnce(t, l, id, "/workspace/home/at/f", "x")
		_, _ = s.Do(worker.Request{Op: worker.OpRename, Path: []byte("/workspace/home/at/f"), To: []byte("/workspace/home/at/g")})
		_, _ = s.Do(worker.Request{Op: worker.OpRename, Path: []byte("/workspace/home/at/g"), To: []byte("/workspace/home/at/f")})
	}
	if got, err := os.ReadFile(outside + "/f"); string(got) != "of the host" || err != nil {
		t.Errorf("a file of the host is %q, %v", got, err)
	}
}

// TestWatchAsRoot: root's watch sees directories that the box's user may not read.
func TestWatchAsRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	rootSh(t, l, id, "mkdir -m 700 /root/closed")
	w := watchBoxAs(t, l, id, "root", "/root")
	rootSh(t, l, id, "echo x > /root/closed/f")
	w.await(worker.EventWrite, "closed/f")
}

// TestFilesOfRootEndWithTheBox: root's worker ends with its session and with the box, and leaves no process.
func TestFilesOfRootEndWithTheBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	entersAs(t, "root")
	s, done, err := l.OpenFiles(t.Context(), id, "root")
	if err != nil {
		t.Fatal(err)
	}
	if err := write(s, "/root/f", "x"); err != nil {
		t.Error(err)
	}
	done()
	<-s.Ended()
	for pid, line := range processesOf(t, l, id) {
		if strings.HasPrefix(line, "boxgate-files") {
			t.Errorf("process %d is left", pid)
		}
	}
	held := openFilesAs(t, l, id, "root")
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Do(worker.Request{Op: worker.OpStat, Path: []byte("/")}); err == nil {
		t.Error("the worker of a deleted box answers")
	}
	held.Close()
	<-held.Ended()
	if _, _, err := l.OpenFiles(t.Context(), id, "root"); err == nil {
		t.Error("files of a deleted box were opened")
	}
}

// TestFilesOfRootWithoutEntering: where commands are started by the runtime, only the box's own user reaches its files.
func TestFilesOfRootWithoutEntering(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	l.entering = nil
	if _, _, err := l.OpenFiles(t.Context(), id, "root"); !errors.Is(err, ErrOwnFilesOnly) {
		t.Error(err)
	}
	if _, _, err := l.OpenWatch(t.Context(), id, "0:0"); !errors.Is(err, ErrOwnFilesOnly) {
		t.Error(err)
	}
	if err := write(openFilesAs(t, l, id, "1000"), "/tmp/f", "x"); err != nil {
		t.Error(err)
	}
}
