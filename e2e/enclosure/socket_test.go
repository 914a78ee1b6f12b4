package enclosure

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const served = "at your service"

// ask returns a line that sends a request to the server at a Unix socket.
func ask(path string) string {
	return "curl -sSm 20 --unix-socket '" + path + "' http://daemon/"
}

// reaches reports, for each line, whether it prints a host server's answer, without the gateway and under it.
func (w *world) reaches(flags []string, lines map[string]string) (outside, inside map[string]bool, all string) {
	w.T.Helper()
	names := slices.Sorted(maps.Keys(lines))
	args := []string{"sh", "-c", `for line; do sh -c "$line" 2>&1; printf "\\nnext\\n"; done`, "sh"}
	for _, name := range names {
		args = append(args, lines[name])
	}
	plain := exec.CommandContext(w.T.Context(), args[0], args[1:]...)
	plain.Dir = w.home()
	plain.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 47110, Gid: 47110}}
	found := func(r result) map[string]bool {
		outs, out := strings.Split(r.out, "\nnext\n"), map[string]bool{}
		if len(outs) != len(names)+1 {
			w.T.Fatalf("%d lines, exit %d:\n%s%s", len(names), r.status, r.out, r.errout)
		}
		for i, name := range names {
			out[name] = strings.Contains(outs[i], served)
		}
		return out
	}
	outside = found(w.finish(plain))
	r := w.run(append(append(flags, "--"), args...)...)
	return outside, found(r), r.out + r.errout
}

// TestAttackRunReachesASocketByAnotherName: host sockets whose name differs from that of bind(2), that are visible
// under another mount, or that were bound in another namespace.
func TestAttackRunReachesASocketByAnotherName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(w.home(), "names")
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 47110, 47110)); err != nil {
		t.Fatal(err)
	}
	w.serve(in("bound"))
	w.serve(in("linked.1234"))
	w.serve(in("exchanged"))
	elsewhere, err := net.Listen("unix", in("elsewhere")) // in the test's network namespace
	if err != nil {
		t.Fatal(err)
	}
	w.answer(elsewhere)
	w.bindRelative(dir, "relative")
	view := filepath.Join(w.home(), "view")
	if err := errors.Join(
		os.Rename(in("bound"), in("renamed")), os.Link(in("linked.1234"), in("linked")), os.Remove(in("linked.1234")), // like OpenSSH
		os.WriteFile(in("placeholder"), nil, 0o600), unix.Renameat2(unix.AT_FDCWD, in("exchanged"), unix.AT_FDCWD, in("placeholder"), unix.RENAME_EXCHANGE),
		os.Chmod(in("elsewhere"), 0o777), os.Mkdir(view, 0o755), syscall.Mount(dir, view, "", syscall.MS_BIND, ""), os.Symlink("names/renamed", filepath.Join(w.home(), "symlink")),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(view, syscall.MNT_DETACH) })
	lines := map[string]string{
		"renamed": ask(in("renamed")), "linked as a ControlMaster": ask(in("linked")), "exchanged": ask(in("placeholder")),
		"of another network namespace": ask(in("elsewhere")), "bound by a relative path": ask(in("relative")),
		"by a second mount": ask(filepath.Join(view, "renamed")), "from its directory": "cd names && " + ask("renamed"), "by a link": ask("symlink"),
		"by the caller's directory": "cd names && " + ask("/proc/self/cwd/renamed"), "by another way up": "cd names && " + ask("../names/../names/renamed"),
		"by fchdir": "/usr/bin/python3 -c \"import os,socket\nos.fchdir(os.open('names', os.O_RDONLY))\ns=socket.socket(socket.AF_UNIX)\ns.connect('renamed')\ns.send(b'GET / HTTP/1.0\\r\\n\\r\\n')\nprint(s.makefile().read())\"",
	}
	outside, inside, all := w.reaches([]string{"-q"}, lines)
	for name := range lines {
		if !outside[name] {
			t.Errorf("%s: not reached without the gateway: the test shows nothing", name)
		}
		if inside[name] {
			t.Errorf("%s: reached", name)
		}
	}
	contains(t, "the summary", all, "refused sockets that no process of the command has bound", in("renamed"), "--socket")
}

// bindRelative starts a host process that answers on a socket bound by a relative path.
func (w *world) bindRelative(dir, name string) {
	w.T.Helper()
	line := fmt.Sprintf("import os,socket\ns=socket.socket(socket.AF_UNIX)\ns.bind(%q)\nos.chmod(%q,0o777)\ns.listen()\nwhile True:\n c=s.accept()[0]\n try: c.recv(999); c.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\n%s')\n except OSError: pass\n c.close()", name, name, served)
	cmd := exec.CommandContext(w.T.Context(), "/usr/bin/python3", "-c", line)
	cmd.Dir = dir
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	w.Until("the socket is there", func() bool {
		c, err := net.Dial("unix", filepath.Join(dir, name))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// TestAttackRunReachesASocketMadeLater: a host process creates a socket in a directory of the command's user.
func TestAttackRunReachesASocketMadeLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.start("sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done; "+ask("later")+"; echo done")
	c.until("ready")
	w.serve(filepath.Join(w.home(), "later"))
	if err := os.WriteFile(filepath.Join(w.home(), "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.until("done")
	if strings.Contains(c.String(), served) {
		t.Errorf("reached:\n%s", c)
	}
	c.until(`refused the socket "` + filepath.Join(w.home(), "later"))
}

// TestAttackRunSendsADatagramToTheHost: to a renamed datagram socket.
func TestAttackRunSendsADatagramToTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.home(), "datagrams")
	conn, err := net.ListenPacket("unixgram", path+".new")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(os.Rename(path+".new", path), os.Chmod(path, 0o777)); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(w.home(), "send.py")
	err = os.WriteFile(script, []byte(`import socket, sys
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    for pair in (False, True):
        for way in ("sendto", "sendmsg", "connect"):
            try:
                s = socket.socketpair(socket.AF_UNIX, kind)[0] if pair else socket.socket(socket.AF_UNIX, kind)
                if way == "sendto": s.sendto(b"from the command", "datagrams")
                if way == "sendmsg": s.sendmsg([b"from the command"], [], 0, "datagrams")
                if way == "connect": s.connect("datagrams"); s.send(b"from the command")
                print("sent")
            except OSError as e:
                print(e)
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	var arrived atomic.Int64
	go func() {
		for {
			if _, _, err := conn.ReadFrom(make([]byte, 99)); err != nil {
				return
			}
			arrived.Add(1)
		}
	}()
	plain := exec.CommandContext(t.Context(), "/usr/bin/python3", script)
	plain.Dir = w.home()
	if out, err := plain.Output(); err != nil || strings.Count(string(out), "sent") != 12 {
		t.Fatalf("without the gateway: %v\n%s", err, out)
	}
	w.Until("they have arrived", func() bool { return arrived.Load() == 12 })
	if r := w.run("-q", "--", "/usr/bin/python3", script); strings.Contains(r.out, "sent") || r.status != 0 || arrived.Load() != 12 {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
}
