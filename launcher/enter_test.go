package launcher

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/oci"
	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// seen shows how a command is confined, as the kernel reports it.
const seen = `
for f in status limits cgroup mountinfo oom_score_adj attr/current sched timerslack_ns personality loginuid sessionid setgroups uid_map gid_map coredump_filter; do
	echo "== $f"; cat /proc/self/$f 2>&1
done
echo "== fd"; ls -l /proc/self/fd | awk '{print $1, $3, $4, $9, $11}'
echo "== ids"; id; umask; pwd; pwd -P; env | sort; nice; ionice 2>&1; taskset -p self 2>&1; ulimit -a; cat /proc/self/environ | tr '\0' '\n' | sort
echo "== ns"; ls -l /proc/self/ns | awk '{print $9, $11}'
echo "== keys"; awk '{$1 = ""; print}' /proc/keys 2>&1; python3 -c "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(250, 0, -3, 0), ctypes.get_errno())"  # KEYCTL_GET_KEYRING_ID of the session
echo "== session"; ps -o pid=,ppid=,pgid=,sid=,tty=,stat= -p $$ | sed 's/[RS]N/N/; s/[RS]s/s/; s/[RS]$//'
python3 - <<'EOF'
import ctypes, fcntl, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print([libc.prctl(o, 0, 0, 0, 0) for o in (3, 7, 27, 39, 30, 21, 25)])  # dumpable, keepcaps, securebits, no_new_privs, timer slack, seccomp
print(libc.prctl(2, ctypes.byref(ctypes.c_int()), 0, 0, 0))
print([[libc.prctl(47, 1, c, 0, 0), libc.prctl(23, c, 0, 0, 0)] for c in range(41)])  # ambient, bounding
print([fcntl.fcntl(fd, fcntl.F_GETFL) & ~0o100000 for fd in range(3)], [os.fstat(fd).st_uid for fd in range(3)], os.getgroups(), os.getsid(0) == os.getpgid(0))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), [signal.getsignal(s) for s in range(1, 32) if s not in (9, 19)])
EOF
`

// volatile are parts of the output that differ between any two commands.
var volatile = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^(Pid|Tgid|Ngid|PPid|NSpid|NStgid|NSpgid|NSsid|Vm\w+|Rss\w+|nonvoluntary_ctxt_switches|voluntary_ctxt_switches|Hugetlb\w*|Threads|SigQ):.*$`),
	regexp.MustCompile(`(?m)^(se\.|nr_|avg_|sum_|mm->|numa_|current_node|clock-delta|cat \(\d+|ext\.).*$`), regexp.MustCompile(`run-[0-9a-f]{16}`), regexp.MustCompile(`pipe:\[\d+\]`), regexp.MustCompile(`/proc/\d+/`),
	regexp.MustCompile(`(?m)^\s*\d+\s+\d+\s+\d+\s+\d+`),
	// Runtimes leave 32 and 33 ignored, the own signals of glibc, if the gateway was: posix_spawn of make starts its commands so.
	regexp.MustCompile(`(?m)^SigIgn:\s0000000[01][08]0000000`),
}

// look runs a command that shows how it is confined.
func look(t *testing.T, l *Launcher, id policy.BoxID, spec ExecSpec) string {
	t.Helper()
	spec.Args = []string{"sh", "-c", seen}
	var out bytes.Buffer
	spec.Stdout, spec.Stderr = &out, &out
	res, err := l.Exec(t.Context(), id, spec)
	if err != nil || res.Status != 0 {
		t.Fatalf("%+v, %v\n%s", res, err, out.String())
	}
	text := out.String()
	for _, v := range volatile {
		text = v.ReplaceAllString(text, "")
	}
	return text
}

// TestEnteredCommandsAreConfinedLikeTheRuntimes: the kernel reports the same of a command whether the box is entered or the
// runtime starts it: user, groups, capabilities, limits, control groups, mounts, namespaces, signals, descriptors,
// environment. The filter for system calls has the same verdicts.
func TestEnteredCommandsAreConfinedLikeTheRuntimes(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		runtime string
		root    bool
	}{{"runc", false}, {"crun", false}, {"runc", true}, {"crun", true}} {
		name := how.runtime
		t.Run(fmt.Sprintf("%s, root %v", name, how.root), func(t *testing.T) {
			t.Parallel()
			l, byRuntime := bothWays(t, name)
			l.cfg.Root, byRuntime.cfg.Root = how.root, how.root
			id := newBox(t, l, nil)
			for what, spec := range map[string]ExecSpec{
				"boxuser": {}, "root": {User: "root", Cwd: "/"}, "another": {User: "1234:4321", Cwd: "/tmp", Env: map[string]string{"X": "a b\nc"}},
				"terminal": {Terminal: &terminal.Size{Rows: 31, Cols: 97}}, "terminal of root": {User: "root", Terminal: &terminal.Size{Rows: 31, Cols: 97}},
			} {
				compareLines(t, name, what, look(t, l, id, spec), look(t, byRuntime, id, spec))
			}
			compareFilters(t, installed(t, l, id), installed(t, byRuntime, id))
		})
	}
}

// TestEnteredCommandsTakeAllSignals: a command is started with the default effect of every signal and none blocked, also by a gateway that ignores
// or blocks some, such as one under nohup, or in the background of a script. It could otherwise not be interrupted, and no shell can set ignored
// signals back.
func TestEnteredCommandsTakeAllSignals(t *testing.T) {
	nightly.Root(t)
	const blocking = "BOXGATE_TEST_BLOCKED_SIGNALS"
	if os.Getenv(blocking) == "" { // each thread of this process has the mask that it was started with
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), blocking+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		started := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			mask := unix.Sigset_t{}
			for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGUSR2, unix.SIGALRM, unix.SIGCHLD, 40} {
				mask.Val[(s-1)/64] |= 1 << ((s - 1) % 64)
			}
			err := unix.PthreadSigmask(unix.SIG_BLOCK, &mask, nil)
			if err == nil {
				err = cmd.Start()
			}
			started <- err
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out.String())
		}
		return
	}
	own, err := os.ReadFile("/proc/thread-self/status")
	if err != nil || strings.Contains(string(own), "SigBlk:\t0000000000000000\n") {
		t.Fatalf("the test blocks no signals: %v\n%s", err, own)
	}
	ignored := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGUSR1, unix.SIGPIPE, unix.Signal(64)}
	signal.Ignore(ignored...)
	defer signal.Reset(ignored...)
	l, _ := bothWays(t, "runc")
	id := newBox(t, l, nil)
	for _, user := range []string{"", "root"} {
		var out bytes.Buffer
		res, err := l.Exec(t.Context(), id, ExecSpec{Args: []string{"grep", "-E", "SigIgn|SigBlk", "/proc/self/status"}, User: user, Stdout: &out, Stderr: &out})
		if err != nil || res.Status != 0 || out.String() != "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n" {
			t.Errorf("user %q: %q, %+v, %v", user, out.String(), res, err)
		}
	}
}

// bothWays returns two launchers of the same boxes: one that only enters them, and one that uses the runtime for every
// command.
func bothWays(t *testing.T, name string) (entering, byRuntime *Launcher) {
	t.Helper()
	l := newLauncher(t)
	l.useRuntime(runtimePath(t, name))
	l.useEntering()
	if l.entering == nil {
		t.Fatal("boxes cannot be entered on this host")
	}
	l.entersOnly = true
	other, err := New(Config{StateDir: l.cfg.StateDir, ImageDir: imageDir(), Runtime: l.runc.Command})
	if err != nil {
		t.Fatal(err)
	}
	other.entering = nil
	return l, other
}

// installed returns the seccomp filter of a command.
func installed(t *testing.T, l *Launcher, id policy.BoxID) []unix.SockFilter {
	t.Helper()
	c, err := l.Start(t.Context(), id, ExecSpec{Args: []string{"sleep", "9000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Kill(); _, _ = c.Wait(t.Context()) }()
	pids, err := c.branch.Members()
	if c.branch == nil { // crun with control groups of version 1
		return nil
	}
	if err != nil || len(pids) != 1 {
		t.Fatalf("%v, %v", pids, err)
	}
	return launchertest.InstalledFilter(t, pids[0])
}

// compareFilters compares the verdicts of two filters on every call, with arguments of each kind that the profile
// distinguishes. An entered command may make no call that the runtime's may not; it may lack those that only the runtime's
// libseccomp knows.
func compareFilters(t *testing.T, entered, started []unix.SockFilter) {
	t.Helper()
	if started == nil {
		return
	}
	values := []uint64{0, 1, 2, 8, 17, 37, 38, 39, 40, 41, 0x20000, 0x20008, 0xffffffff, 1 << 32, 1<<32 | 8, unix.CLONE_NEWNS, unix.CLONE_NEWUSER, unix.CLONE_NEWTIME, 0x7e020000, 1<<64 - 1}
	const newest, uretprobe = 449, 335 // futex_waitv, the last call that the profile allows and libseccomp 2.5.4 knows; uretprobe is newer
	same := 0
	for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_S390X} {
		for _, base := range []uint32{0, 0x40000000, 0xf0000} {
			for n := range uint32(600) {
				for _, v := range values {
					args := [6]uint64{v, v, v, v, v, v}
					if arch == unix.AUDIT_ARCH_I386 {
						for i := range args {
							args[i] &= 0xffffffff
						}
					}
					a, b := launchertest.Verdict(t, entered, base+n, arch, args), launchertest.Verdict(t, started, base+n, arch, args)
					if a == b {
						same++
					} else if base != 0 || n <= newest && n != uretprobe || a&^0xff != unix.SECCOMP_RET_ERRNO {
						t.Fatalf("call %d of architecture %#x with %#x: %#x, by the runtime %#x", base+n, arch, v, a, b)
					}
				}
			}
		}
	}
	if same < 100_000 {
		t.Errorf("only %d verdicts are the same", same)
	}
}

// runtimePath returns a runtime. crun refuses a host with control groups of both versions, so it gets a view of only
// version 1 there.
func runtimePath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("NOT RUN under %s, which this host does not have", name)
	}
	const unified = "/sys/fs/cgroup/unified"
	controllers, err := os.ReadFile(unified + "/cgroup.controllers")
	if !oci.ByName(name).RefusesHybrid || err != nil || len(bytes.TrimSpace(controllers)) == 0 {
		return path
	}
	wrapper := filepath.Join(t.TempDir(), name)
	script := "#!/bin/sh\nexec unshare --mount --propagation unchanged sh -c 'mount --make-rprivate /sys/fs/cgroup && umount " + unified +
		" && exec " + path + " \"$@\"' sh \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return wrapper
}

// deviations are lines in which a runtime deviates from the configuration that it is given.
var deviations = map[string][][2]string{
	"runc": { // the Go runtime of runc raises its soft limit, which the command inherits
		{"Max open files", "Max open files"}, {"nofiles ", "nofiles "},
	},
	"crun": { // its exec ignores the OOM score; and makes no session without a terminal
		{"500", "0"}, {" ?        Ns", " ?        N"}, {" ?        s", " ?        "}, {"[0, 2, 2] [1000, 1000, 1000]", "[0, 2, 2] [1000, 0, 0]"},
	},
}

// compareLines compares what two commands have shown.
func compareLines(t *testing.T, runtime, what, entered, started string) {
	t.Helper()
	a, b := strings.Split(entered, "\n"), strings.Split(started, "\n")
	if len(a) != len(b) || len(a) < 100 {
		t.Errorf("%s: %d lines, by the runtime %d", what, len(a), len(b))
		return
	}
	for i := range a {
		known := slices.ContainsFunc(deviations[runtime], func(d [2]string) bool { return strings.HasPrefix(a[i], d[0]) && strings.HasPrefix(b[i], d[1]) })
		if a[i] != b[i] && !known {
			t.Errorf("%s: %q, by the runtime %q", what, a[i], b[i])
		}
	}
}
