package enclosure

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// open is the most permissive policy.
var open = []string{"--policy", "allow-all"}

// TestAttackRunIsLeft: by other namespaces, links, raw packets, setuid programs and protocols.
func TestAttackRunIsLeft(t *testing.T) {
	t.Parallel()
	w := &world{harness.SharedStopped(t, testnet.Options{Capture: true})}
	www := w.V4("www.example.com")
	port := w.servePort()
	id, err := os.ReadFile("/usr/bin/id")
	if err == nil {
		err = os.WriteFile(filepath.Join(w.home(), "setuid-id"), id, 0o755)
	}
	if err = errors.Join(err, os.Chmod(filepath.Join(w.home(), "setuid-id"), 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	users, network := w.rootless()
	refused(t, map[string]string{
		"a namespace of its user's":         "nsenter --preserve-credentials --user=" + users + " --net=" + network + " true",
		"a namespace of its own":            "unshare -n true",
		"the namespace of process 1":        "nsenter --net=/proc/1/ns/net true",
		"a link":                            "ip link add dummy0 type dummy || ip link set eth0 down || ip route add 192.0.2.1 dev lo || ip addr add 192.0.2.9/32 dev lo",
		"the rules":                         "nft list ruleset || nft add table inet x",
		"a raw socket":                      python("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
		"a packet socket":                   python("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"),
		"a vsock":                           python("socket.socket(40, socket.SOCK_STREAM)"),
		"a setuid program":                  `[ "$(./setuid-id -u)" != ` + user + " ]",
		"a setting of the kernel":           "echo 1 > /proc/sys/net/ipv4/ip_forward",
		"the loopback of the host":          fmt.Sprintf("curl -sSm 20 http://127.0.0.1:%d/", port),
		"an address of the host":            fmt.Sprintf("curl -sSm 20 http://192.0.2.254:%d/", port),
		"the metadata service":              "curl -sSm 20 http://169.254.169.254/",
		"UDP":                               python(fmt.Sprintf("s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('%s', 9999)); s.send(b'x'); s.recv(1)", www)),
		"QUIC":                              python(fmt.Sprintf("s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('%s', 443)); s.send(b'x'); s.recv(1)", www)),
		"ICMP":                              python(fmt.Sprintf("s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1); s.settimeout(5); s.connect(('%s', 1)); s.send(b'\\x08'+bytes(15)); s.recv(1)", www)),
		"another process's memory":          "cat /proc/1/maps >/dev/null",
		"another process's files":           "ls /proc/1/fd",
		"the supervisor's files":            supervisor + "ls /proc/$s/fd || head -c 1 /proc/$s/mem",
		"the supervisor":                    supervisor + "kill -STOP $s || kill -9 $s",
		"another mount":                     "umount /run || umount /proc || mount -t tmpfs x /mnt",
		"a key of root's making":            syscallOf(unix.SYS_REQUEST_KEY, "b'user', b'boxgate-test', b'', -2"),
		"a key":                             syscallOf(unix.SYS_ADD_KEY, "b'user', b'boxgate-test', b'x', 1, -2"),
		"the keyring of its user":           syscallOf(unix.SYS_KEYCTL, "0, -4, 1"),
		"a program in the kernel":           syscallOf(unix.SYS_BPF, "0, 0, 0"),
		"a trace":                           syscallOf(unix.SYS_PERF_EVENT_OPEN, "0, 0, -1, -1, 0"),
		"its own page faults":               syscallOf(unix.SYS_USERFAULTFD, "1"),
		"a mount of its own user namespace": "unshare -rm umount /run",
		"what is below a mount":             "unshare -rm mount --bind / /mnt",
	}, func(args ...string) result { return w.run(append(append(open, "-q", "--"), args...)...) })
	w.Untouched(www)
}

// rootless starts a process of the user in namespaces that it created itself, like rootless containers, and mounts them
// where the user can see and enter them.
func (w *world) rootless() (userNamespace, network string) {
	w.T.Helper()
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 47110, Gid: 47110}}
	container := exec.CommandContext(w.T.Context(), "unshare", "--user", "--net", "sleep", "100000")
	container.SysProcAttr = as
	if err := container.Start(); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = container.Process.Kill(); _ = container.Wait() })
	proc := fmt.Sprintf("/proc/%d/", container.Process.Pid)
	w.Until("the namespaces are made", func() bool {
		name, err := os.ReadFile(proc + "comm")
		return err == nil && string(name) == "sleep\n"
	})
	at := map[string]string{}
	for _, kind := range []string{"user", "net"} {
		at[kind] = filepath.Join(w.home(), "ns-"+kind)
		if err := errors.Join(os.WriteFile(at[kind], nil, 0o644), unix.Mount(proc+"ns/"+kind, at[kind], "", unix.MS_BIND, "")); err != nil {
			w.T.Fatal(err)
		}
		w.T.Cleanup(func() { _ = unix.Unmount(at[kind], unix.MNT_DETACH) })
	}
	enter := exec.CommandContext(w.T.Context(), "nsenter", "--preserve-credentials", "--user="+at["user"], "--net="+at["net"], "true")
	enter.SysProcAttr = as
	if out, err := enter.CombinedOutput(); err != nil {
		w.T.Fatalf("the user cannot enter them without the gateway: %v\n%s", err, out)
	}
	return at["user"], at["net"]
}

// TestAttackRunIsLeftByRoot: a command that runs as root has access to its files, but not to the network, devices, the
// kernel, or other processes.
func TestAttackRunIsLeftByRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refused(t, map[string]string{
		"a link":                     "ip link set eth0 down",
		"another address":            "ip addr add 192.0.2.9/32 dev lo",
		"the namespace of process 1": "nsenter --net=/proc/1/ns/net true",
		"a raw socket":               python("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
		"a setting of the kernel":    "echo 0 > /proc/sys/net/ipv4/ip_forward || echo x > /proc/sysrq-trigger",
		"a mount":                    "mount -t tmpfs x /mnt || umount /run",
		"a device":                   "mknod disk b 8 0",
		"another process's memory":   "cat /proc/1/environ",
		"the supervisor's memory":    supervisor + "cat /proc/$s/environ || head -c 1 /proc/$s/mem || cat /proc/$s/maps",
		"the supervisor's files":     supervisor + "readlink /proc/$s/fd/3 || readlink /proc/$s/exe",
		"the supervisor's sockets":   supervisor + "/usr/bin/python3 -c 'import ctypes, os, sys; c = ctypes.CDLL(None).syscall; p = os.pidfd_open(int(sys.argv[1])); sys.exit(all(c(438, p, fd, 0) == -1 for fd in range(64)))' $s",
		"tracing the supervisor":     supervisor + "/usr/bin/python3 -c 'import ctypes, sys; c = ctypes.CDLL(None); s = int(sys.argv[1]); sys.exit(c.ptrace(16, s, 0, 0) == -1 and c.ptrace(0x4206, s, 0, 0) == -1)' $s",
		"a vsock of the host":        "[ ! -c /dev/vhost-vsock ] && exit 1; true",
		"a keyboard":                 "[ ! -c /dev/uinput ] && exit 1; true",
		"page faults by a device":    "[ ! -c /dev/userfaultfd ] && exit 1; true",
		"a control group":            "mkdir /sys/fs/cgroup/boxgate-test",
	}, func(args ...string) result {
		cmd := w.command(append(append(open, "-q", "--"), args...)...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "SUDO_") })
		return w.finish(cmd)
	})
}

// supervisor starts a line about the process that connects for the command, $s. The line succeeds if there is none.
const supervisor = "s=$(grep -ls 'run-insid[e]' /proc/[0-9]*/cmdline | grep -v /proc/1/ | grep -o '[0-9]*' | head -n 1); [ -n \"$s\" ] || exit 0; "

// refused runs each line of shell in one run, and fails the test for each line that succeeds or does not exit.
func refused(t *testing.T, lines map[string]string, run func(args ...string) result) {
	t.Helper()
	names := slices.Sorted(maps.Keys(lines))
	args := []string{"sh", "-c", `for line; do sh -c "$line" 2>&1; printf "\\nexit %d\\n" $?; done`, "sh"}
	for _, name := range names {
		args = append(args, lines[name])
	}
	r := run(args...)
	outs := strings.Split(r.out, "\nexit ")
	if len(outs) != len(names)+1 {
		t.Fatalf("%d lines, exit %d:\n%s%s", len(names), r.status, r.out, r.errout)
	}
	for i, name := range names {
		status, _, _ := strings.Cut(outs[i+1], "\n")
		if status == "0" || status == "127" {
			t.Errorf("%s: %s: exit %s\n%s", name, lines[name], status, outs[i])
		}
	}
}

// TestAttackRunInheritsADescriptor: the command does not inherit a socket of the host's network that the caller has
// open.
func TestAttackRunInheritsADescriptor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ours *os.File
	err := w.Net.Gateway().Do(func() (err error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		ours = os.NewFile(uintptr(fd), "socket")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	cmd := w.command("-q", "--", "sh", "-c", "ls -l /proc/self/fd/")
	cmd.ExtraFiles = []*os.File{ours}
	if r := w.finish(cmd); r.status != 0 || strings.Contains(r.out, "socket:") {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
}

// python returns a Python line with package socket imported.
func python(line string) string { return "/usr/bin/python3 -c \"import socket; " + line + "\"" }

// syscallOf returns a Python line that fails only if the system call does not exist: ENOSYS.
func syscallOf(number int, args string) string {
	return fmt.Sprintf(`/usr/bin/python3 -c "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); r = libc.syscall(%d, %s); e = ctypes.get_errno(); print(r, e); sys.exit(r == -1 and e == %d)"`,
		number, args, unix.ENOSYS)
}

// servePort answers on a port of every address of the host.
func (w *world) servePort() int {
	w.T.Helper()
	ln, err := w.Net.Gateway().Listen("tcp", "0.0.0.0:0")
	if err != nil {
		w.T.Fatal(err)
	}
	w.answer(ln)
	return ln.Addr().(*net.TCPAddr).Port
}

// TestAttackRunSeesProcesses: processes of the same user outside can be neither seen nor changed, in any view of
// processes.
func TestAttackRunSeesProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := harness.ExecDetached("sleep", "100000")
	victim.SysProcAttr.Credential = &syscall.Credential{Uid: 47110, Gid: 47110}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	second := filepath.Join(w.home(), "proc") // as in a chroot
	if err := os.Mkdir(second, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("proc", second, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(second, syscall.MNT_DETACH) })
	r := w.must(open, fmt.Sprintf("ls /proc | grep -c '^[0-9]'; ls proc; kill -0 %d && echo alive; true", victim.Process.Pid))
	if n := strings.Fields(r.out); len(n) != 1 || len(n[0]) != 1 {
		t.Errorf("it sees\n%s", r.out)
	}
}

// TestAttackRunAsksDaemons: sockets of the host whose servers would act for the command cannot be reached, including
// abstract ones, unless the caller names them.
func TestAttackRunAsksDaemons(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.home()
	daemons := filepath.Join(dir, "daemons")
	if err := os.Mkdir(daemons, 0o777); err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("/run", "boxgate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{
		"beside files": filepath.Join(dir, "socket"), "alone": filepath.Join(daemons, "socket"), "in run": filepath.Join(run, "socket"),
		"abstract": "@boxgate-test-" + filepath.Base(w.Dir),
	}
	for _, path := range paths {
		w.serve(path)
	}
	w.serve(filepath.Join(daemons, "other")) // covered by the mount, except the named socket
	for name, path := range paths {
		line := fmt.Sprintf("curl -sSm 5 --unix-socket %s http://daemon/", path)
		if strings.HasPrefix(path, "@") {
			line = fmt.Sprintf("curl -sSm 5 --abstract-unix-socket %s http://daemon/", path[1:])
		}
		if r := w.run("-q", "--", "sh", "-c", line); r.status == 0 || strings.Contains(r.out, "at your service") {
			t.Errorf("%s: %s", name, r.out)
		}
		if strings.HasPrefix(path, "@") {
			continue
		}
		if r := w.run("-q", "--socket", path, "--", "sh", "-c", line); !strings.Contains(r.out, "at your service") {
			t.Errorf("%s: not reached although it was named: %s%s", name, r.out, r.errout)
		}
	}
}

// serve answers on a Unix socket of the host.
func (w *world) serve(path string) {
	w.T.Helper()
	var ln net.Listener
	err := w.Net.Gateway().Do(func() (err error) {
		ln, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		w.T.Fatal(err)
	}
	if !strings.HasPrefix(path, "@") {
		if err := os.Chmod(path, 0o777); err != nil {
			w.T.Fatal(err)
		}
	}
	w.answer(ln)
}

func (w *world) answer(ln net.Listener) {
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "at your service")
	})}
	go func() { _ = server.Serve(ln) }()
	w.T.Cleanup(func() { _ = server.Close() })
}

// TestAttackRunOutlivesItsGateway: while the gateway is stopped, and after it was killed, no traffic passes.
func TestAttackRunOutlivesItsGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.startUnder(open, "sh", "-c", "curl -sS https://www.example.com/ >/dev/null && echo ready; while :; do curl -sSm 1 http://v4only.example.com/; done")
	c.until("ready")
	_ = c.cmd.Process.Signal(syscall.SIGSTOP)
	n, since := 0, time.Now()
	w.Until("nothing passes any more", func() bool { // traffic in transit may still arrive
		if now := len(w.Net.Received("v4only.example.com", testnet.Any)); now != n {
			n, since = now, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
	w.Net.Forget()
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
	w.NothingReached("v4only.example.com")
}
