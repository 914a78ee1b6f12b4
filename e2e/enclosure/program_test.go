package enclosure

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet/sshd"
)

// hosted starts a program on the host, outside of any command, that ends with the test.
func (w *world) hosted(uid uint32, name string, args ...string) (stop func()) {
	w.T.Helper()
	cmd := harness.ExecDetached(name, args...)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	cmd.Dir = w.home()
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	w.T.Cleanup(stop)
	return stop
}

// TestAttackRunUsesAnSSHLogin: OpenSSH renames the control socket of a login after binding it. A process that can
// connect to it has a shell on the other host, and a way to anywhere from there.
func TestAttackRunUsesAnSSHLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := sshd.New(t)
	var ln net.Listener
	if err := w.Net.Gateway().Do(func() (err error) {
		ln, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go server.Serve(ln)
	dir := filepath.Join(w.home(), "ssh")
	key := filepath.Join(dir, "key")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(key, []byte(server.Key), 0o600), os.Chown(dir, sshd.UID, sshd.UID), os.Chown(key, sshd.UID, sshd.UID)); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(dir, "control")
	port := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
	options := []string{"-F", "none", "-S", control, "-o", "BatchMode=yes", "-p", port, sshd.User + "@127.0.0.1"}
	stop := w.hosted(sshd.UID, "ssh", append([]string{
		"-M", "-N", "-i", key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null"}, options...)...)
	defer stop() // before the server
	w.Until("the login has its control socket", func() bool {
		_, err := os.Lstat(control)
		return err == nil
	})
	login := append(append([]string{"ssh"}, options...), "echo logged in as $(id -u)")
	plain := exec.CommandContext(t.Context(), login[0], login[1:]...)
	plain.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: sshd.UID, Gid: sshd.UID}}
	if r := w.finish(plain); !strings.Contains(r.out, "logged in") {
		t.Fatalf("without the gateway: exit %d\n%s%s", r.status, r.out, r.errout)
	}
	cmd := w.command(append([]string{"--"}, login...)...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("SUDO_UID=%d", sshd.UID), fmt.Sprintf("SUDO_GID=%d", sshd.UID))
	r := w.finish(cmd)
	if r.status == 0 || strings.Contains(r.out, "logged in") {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
	contains(t, "what was said", r.errout, "refused the socket "+fmt.Sprintf("%q", control))
	if _, err := os.Lstat(control); err != nil {
		t.Errorf("the control socket is gone: %v", err) // ssh removes one that refuses connections
	}
}

// TestAttackRunAsksAJVM: a JVM renames the socket through which its user can make it run code.
func TestAttackRunAsksAJVM(t *testing.T) {
	t.Parallel()
	registry, err := exec.LookPath("rmiregistry") // part of every JDK; it waits for connections
	if err != nil {
		t.Skip("there is no JVM on this machine; TestAttackRunReachesASocketByAnotherName renames a socket as a JVM does")
	}
	w := newWorld(t)
	cmd := harness.ExecDetached(registry, "-J-XX:+StartAttachListener", "0")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 47110, Gid: 47110}
	cmd.Dir = w.home()
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	socket := fmt.Sprintf("/tmp/.java_pid%d", cmd.Process.Pid)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = os.Remove(socket) })
	w.Until("the JVM has its socket", func() bool {
		_, err := os.Lstat(socket)
		return err == nil
	})
	ask := "/usr/bin/python3 -c \"import socket\ns=socket.socket(socket.AF_UNIX)\ns.connect('" + socket + "')\ns.send(b'1\\0jcmd\\0VM.command_line\\0\\0\\0')\nprint(s.makefile().read())\""
	plain := exec.CommandContext(t.Context(), "sh", "-c", ask)
	plain.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 47110, Gid: 47110}}
	if r := w.finish(plain); !strings.Contains(r.out, "StartAttachListener") {
		t.Fatalf("without the gateway: exit %d\n%s%s", r.status, r.out, r.errout)
	}
	if r := w.run("-q", "--", "sh", "-c", ask); r.status == 0 || strings.Contains(r.out, "StartAttachListener") || !strings.Contains(r.errout, "refused sockets that no process of the command has bound") {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
}

// ownSockets binds, renames and connects sockets in every way that the command is entitled to.
const ownSockets = `import os, socket, struct, sys, threading
os.makedirs("own", exist_ok=True); os.chdir("own")
def server(kind, name):
    s = socket.socket(socket.AF_UNIX, kind); s.bind(name); s.listen(); return s
def check(s, kind, path):
    c = socket.socket(socket.AF_UNIX, kind); c.connect(path); t = s.accept()[0]
    uid = struct.unpack("3i", t.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    c.send(b"x"); assert t.recv(9) == b"x" and uid == os.getuid(), (path, uid)
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name in ("bound", "renamed", "linked"):
        if os.path.lexists(name): os.unlink(name)
    s = server(kind, "bound"); check(s, kind, "bound")
    os.rename("bound", "renamed"); os.link("renamed", "linked")
    for path in ("renamed", os.getcwd() + "/linked", "../own/renamed", "/proc/self/cwd/renamed", "/proc/thread-self/cwd/renamed"): check(s, kind, path)
    d = os.open(".", os.O_RDONLY); check(s, kind, "/dev/fd/%d/renamed" % d)
    t = threading.Thread(target=check, args=(s, kind, "renamed")); t.start(); t.join()
    check(server(kind, "\0own"), kind, "\0own")
    pid = os.fork()
    if pid == 0: check(s, kind, "linked"); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
for path, error in (("missing", FileNotFoundError), ("/etc/passwd", (ConnectionRefusedError, PermissionError)), ("x" * 108, (FileNotFoundError, OSError))):
    try: socket.socket(socket.AF_UNIX).connect(path); print(path, "connected")
    except error: pass
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
for family in (socket.AF_INET,):
    c = socket.socket(family); c.connect(l.getsockname()); c.close()
n = socket.socket(); n.setblocking(False); assert n.connect_ex(l.getsockname()) in (0, 115)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(("127.0.0.1", 9)); u.close()
try: socket.socket().connect(("127.0.0.1", 1)); print("connected to nobody")
except ConnectionRefusedError: pass
print("all of its own")
`

// TestRunReachesItsOwnSockets: under any name, also in namespaces that the command creates itself, and by a program
// that depends on them. The server sees the command's user.
func TestRunReachesItsOwnSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := filepath.Join(w.home(), "own.py")
	if err := os.WriteFile(script, []byte(ownSockets), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]string{
		"sockets":                "/usr/bin/python3 own.py",
		"in namespaces":          "unshare -rmn sh -c 'mount -t tmpfs x /mnt && ip link set lo up && cp own.py /mnt && cd /mnt && /usr/bin/python3 own.py'",
		"in a root of its own":   "unshare -rR / sh -c \"cd $PWD && /usr/bin/python3 own.py\"",
		"a terminal multiplexer": "export TMUX_TMPDIR=$PWD TERM=xterm; tmux -f /dev/null new -d -s one 'sleep 1000' && tmux ls | grep -q one && tmux kill-server && echo all of its own",
	} {
		t.Run(name, func(t *testing.T) {
			if r := w.run("-q", "--", "sh", "-c", line+" 2>&1"); r.status != 0 || !strings.Contains(r.out, "all of its own") || strings.Contains(r.out, "connected") {
				t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
			}
		})
	}
}

// TestAttackRunInheritsASocketAsItsInput: a socket of the host's network as standard input could be connected again.
func TestAttackRunInheritsASocketAsItsInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inherit := func(family, kind int) result {
		fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		cmd := w.command("-q", "--", "true")
		cmd.Stdin = f
		return w.finish(cmd)
	}
	for _, kind := range [][2]int{{syscall.AF_INET, syscall.SOCK_STREAM}, {syscall.AF_INET6, syscall.SOCK_DGRAM}, {syscall.AF_UNIX, syscall.SOCK_DGRAM}, {syscall.AF_UNIX, syscall.SOCK_STREAM}} {
		if r := inherit(kind[0], kind[1]); r.status == 0 || !strings.Contains(r.errout, "standard input is a socket of the host") {
			t.Errorf("%v: exit %d\n%s%s", kind, r.status, r.out, r.errout)
		}
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0) // like Node.js for its children
	if err != nil {
		t.Fatal(err)
	}
	f, other := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "other")
	defer f.Close()
	defer other.Close()
	cmd := w.command("-q", "--", "true")
	cmd.Stdin = f
	if r := w.finish(cmd); r.status != 0 {
		t.Errorf("a pair: exit %d\n%s", r.status, r.errout)
	}
}
