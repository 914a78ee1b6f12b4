package launcher

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/terminal"
	"boxgate/policy"
)

// rootLauncher returns a launcher in whose boxes set-user-ID programs have their effect.
func rootLauncher(t *testing.T) *Launcher {
	t.Helper()
	l := newLauncher(t)
	l.cfg.Root = true
	l.useRuntime(l.runc.Command)
	return l
}

// TestRootByProgramsOfTheBox: with Config.Root, the user of a box becomes its root by sudo, su and its own set-user-ID programs,
// and manages packages and users, whether the box is entered or a runtime starts the command.
func TestRootByProgramsOfTheBox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"runc", "crun", "the runtime's exec"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := rootLauncher(t)
			if name == "the runtime's exec" {
				l.entering = nil
			} else {
				l.useRuntime(runtimePath(t, name))
				l.entersOnly = l.entering != nil
			}
			id := newBox(t, l, func(s *Spec) { s.Hostname = "maple" })
			want(t, sh(t, l, id, "sudo -n id -u; sudo -n -u '#33' id -u; sudo -n sh -c 'echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS'"),
				"0\n33\n/etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt")
			in := run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "sudo id -u; sudo -s sh -c 'test -t 0 && stty size'; sudo -i pwd; visudo -c >/dev/null 2>&1; sudo visudo -c | grep boxgate"}, Terminal: &terminal.Size{Rows: 31, Cols: 97}})
			if got := strings.ReplaceAll(in.out, "\r", ""); got != "0\n31 97\n/root\n/etc/sudoers.d/boxgate: parsed OK\n" {
				t.Errorf("in a terminal: %q", got)
			}
			if r := sh(t, l, id, "sudo -n id"); r.err != "" {
				t.Errorf("sudo says %q", r.err)
			}
			want(t, sh(t, l, id, "sudo -n useradd -m -s /bin/sh maria && echo maria:First-Pass-1 | sudo -n chpasswd && "+
				"printf 'First-Pass-1\n' | su -c 'id -un; pwd' maria 2>/dev/null"), "maria\n/workspace/home")
			want(t, sh(t, l, id, "printf 'First-Pass-1\n' | su -c \"printf 'First-Pass-1\\nSecond-Pass-2\\nSecond-Pass-2\\n' | passwd >/dev/null 2>&1 && echo changed\" maria 2>/dev/null"), "changed")
			want(t, sh(t, l, id, buildPackage+"sudo -n apt-get install -y -qq /tmp/hello.deb >/tmp/log 2>&1 || cat /tmp/log; hello; stat -c '%U %a' /usr/bin/hello; "+
				"sudo -n dpkg -r hello >/dev/null; ls /usr/bin/hello 2>&1 | grep -c 'No such'"), "hello 0\nroot 4755\n1")
			want(t, sh(t, l, id, "sudo -n install -o root -m 4755 $(command -v id) /usr/local/bin/who && who -u; sudo -n install -o maria -m 4755 $(command -v id) /usr/local/bin/who && [ $(who -u) = $(id -u maria) ] && echo maria"), "0\nmaria")
		})
	}
}

// buildPackage is a script that makes /tmp/hello.deb, a package with a set-user-ID program that prints its effective user.
const buildPackage = `mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/var/lib/hello
printf 'Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: hello\n' >/tmp/p/DEBIAN/control
printf '#!/bin/sh\nset -e\nchown 33:33 /var/lib/hello\ncp /usr/bin/id /usr/bin/hello-id\nchown root:root /usr/bin/hello-id\nchmod 4755 /usr/bin/hello-id\n' >/tmp/p/DEBIAN/postinst
printf '#!/bin/sh\necho hello $(/usr/bin/hello-id -u)\n' >/tmp/p/usr/bin/hello
chmod 755 /tmp/p/DEBIAN/postinst; chmod 4755 /tmp/p/usr/bin/hello
dpkg-deb --root-owner-group --build /tmp/p /tmp/hello.deb >/dev/null
`

// TestRootIsOffByDefault: without Config.Root the same programs gain nothing, though a command may be started as the box's root,
// which manages packages.
func TestRootIsOffByDefault(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	r := sh(t, l, id, "sudo -n id")
	if r.exit == 0 || !strings.Contains(r.err, "no new privileges") {
		t.Errorf("sudo: %+v", r)
	}
	want(t, rootSh(t, l, id, buildPackage+"apt-get install -y -qq /tmp/hello.deb >/tmp/log 2>&1 || cat /tmp/log; useradd -m maria; stat -c '%U %a' /usr/bin/hello-id; stat -c %U /home/maria; ls /etc/sudoers.d/boxgate 2>/dev/null; true"),
		"root 4755\nmaria")
	want(t, sh(t, l, id, "hello"), "hello 1000")
	if st, err := l.State(t.Context(), id); err != nil || st.Root {
		t.Errorf("%+v, %v", st, err)
	}
}

// privileges are the lines of /proc/self/status about privileges.
const privileges = "grep -E '^(Uid|Gid|Cap|Seccomp|NoNewPrivs)' /proc/self/status; cat /proc/self/uid_map /proc/self/setgroups; ulimit -Ha"

// TestRootBySudoIsRootByExec: a command that has become root by a set-user-ID program has the same user, capabilities, filter and
// limits as one that the gateway has started as root.
func TestRootBySudoIsRootByExec(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	id := newBox(t, l, nil)
	by, direct := sh(t, l, id, "sudo -n bash -c '"+strings.ReplaceAll(privileges, "'", `'\''`)+"'"), run(t, l, id, ExecSpec{Args: []string{"bash", "-c", privileges}, User: "root"})
	if by.exit != 0 || by.out != direct.out || !strings.Contains(by.out, "CapEff") {
		t.Errorf("by sudo:\n%s%s\nby exec:\n%s%s", by.out, by.err, direct.out, direct.err)
	}
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := l.State(t.Context(), id); err != nil || !st.Root {
		t.Errorf("%+v, %v", st, err)
	}
	want(t, sh(t, l, id, "sudo -n awk '{print $2}' /proc/self/uid_map"), fmt.Sprint(r.ids().Host(0)))
}

// TestAttackFromABoxWithRoot repeats the attacks on the host and on other boxes from boxes whose set-user-ID programs have their
// effect.
func TestAttackFromABoxWithRoot(t *testing.T) {
	t.Parallel()
	for name, probe := range map[string]func(*testing.T, *Launcher){
		"system calls": probeAttackSystemCalls, "files": probeAttackFilesThatLeadOut, "working directory": probeAttackWorkingDirectory,
		"the runtime on its way in": probeAttackTheRuntimeOnItsWayIn, "abstract sockets": probeAttackAbstractSockets,
		"privileges": probeBoxCannotGainPrivileges, "nobody outside": probeRootInTheBoxIsNobodyOutside, "other boxes": probeBoxesShareNothing,
		"limits of commands": probeLimitsOfCommandsHold, "mounts of the host": probeBoxSeesNoMountsOfTheHost,
		"entering processes": entered(probeAttackOnEnteringProcesses), "paths of the command": entered(probeAttackThroughPathsOfTheCommand),
		"system calls, by the runtime": started(probeAttackSystemCalls), "the runtime's exec on its way in": started(probeAttackTheRuntimeOnItsWayIn),
		"working directory, by the runtime": started(probeAttackWorkingDirectory), "privileges, by the runtime": started(probeBoxCannotGainPrivileges),
		"terminal": entered(probeAttackOnTheTerminal), "stopped entry": entered(probeStoppedEntryEndsWithItsCaller),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			probe(t, rootLauncher(t))
		})
	}
}

// entered makes a probe run in boxes that are entered, without the runtime.
func entered(probe func(*testing.T, *Launcher)) func(*testing.T, *Launcher) {
	return func(t *testing.T, l *Launcher) {
		t.Helper()
		if l.entering == nil {
			t.Fatal("boxes cannot be entered on this host")
		}
		l.entersOnly = true
		probe(t, l)
	}
}

// started makes a probe run in boxes whose commands the runtime starts.
func started(probe func(*testing.T, *Launcher)) func(*testing.T, *Launcher) {
	return func(t *testing.T, l *Launcher) {
		t.Helper()
		l.entering = nil
		probe(t, l)
	}
}

// beyondRoot are attempts of the box's user to have more than the box's root, by programs that gain privileges when they are
// executed.
const beyondRoot = `
import ctypes, fcntl, os, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def has(what): print(what, flush=True)
def succeeds(*args): return subprocess.run(args, capture_output=True).returncode == 0
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
known = sum(1 << c for c in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31))
for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapInh', 'CapAmb'):
    if int(status[name], 16) & ~known: has(name + status[name])
# Capabilities in a file beyond the bounding set: the kernel refuses to execute it, or leaves them out.
for caps, number in {'net_admin': 12, 'net_raw': 13, 'sys_admin': 21, 'sys_ptrace': 19, 'mknod': 27, 'dac_read_search': 2, 'sys_resource': 24, 'bpf': 39}.items():
    for effective in (0, 1):
        os.system('cp /usr/bin/python3 /usr/local/bin/capable')
        sets = [0, 0, 0, 0]
        sets[2 * (number // 32)] = sets[2 * (number // 32) + 1] = 1 << number % 32
        try: os.setxattr('/usr/local/bin/capable', 'security.capability', struct.pack('<5I', 0x02000000 | effective, *sets))
        except OSError as e: has('no capabilities of files: %s' % e)
        got = subprocess.run(['setpriv', '--reuid', '1000', '/usr/local/bin/capable', '-c', 'print(open("/proc/self/status").read())'], capture_output=True, text=True).stdout
        for line in got.splitlines():
            if line.startswith(('CapEff', 'CapPrm', 'CapAmb')) and int(line.split()[1], 16): has(caps + ' by a file: ' + line)
# Regaining them: the bounding set, ambient and inheritable sets, securebits.
if libc.prctl(24, 12, 0, 0, 0) == 0 and libc.prctl(23, 12, 0, 0, 0) == 1: has('the bounding set grew')
for number in (12, 13, 21):
    if libc.prctl(47, 2, number, 0, 0) == 0: has('ambient capability %d' % number)
# Namespaces, mounts, the network that the gateway guards.
for flags in ('-U', '-Ur', '-n', '-m', '-p', '-i', '-u', '-C', '-T', '-Urn'):
    if succeeds('unshare', flags, 'true'): has('unshare ' + flags)
for kind in ('net', 'mnt', 'user', 'pid', 'ipc', 'uts', 'cgroup'):
    if succeeds('nsenter', '--target', '1', '--' + {'mnt': 'mount'}.get(kind, kind), 'true'): has('nsenter ' + kind)
for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 3), (17, 2, 3)):
    try: socket.socket(family, kind, protocol); has('socket %s' % ((family, kind, protocol),))
    except OSError: pass
for command in ('ip link set lo down', 'ip route add default dev lo', 'ip addr add 192.0.2.1/32 dev lo', 'ip rule add from all lookup 7', 'ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev lo',
                'ip tuntap add dev t0 mode tun', 'ip link add d0 type dummy', 'tc qdisc add dev lo root pfifo', 'sysctl -w net.ipv4.ip_unprivileged_port_start=0', 'mount -o remount,suid,dev /tmp',
                'mount --bind / /mnt', 'umount /proc/kcore', 'chroot /proc/1/root ip link set lo down'):
    if succeeds('sh', '-c', command): has(command)
s = socket.socket()
for level, option in ((0, 19), (1, 36), (41, 75)):  # IP_TRANSPARENT, SO_MARK, IPV6_TRANSPARENT
    try: s.setsockopt(level, option, 1); has('socket option %d' % option)
    except OSError: pass
# Limits of the box: quotas, scores, schedulers, real-time clocks.
try: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000'); has('the score')
except OSError: pass
if succeeds('nice', '-n', '-5', 'sh', '-c', '[ $(nice) -lt 0 ]'): has('priority')
if succeeds('chrt', '-f', '1', 'true'): has('real time')
for path in ('/', '/root', '/workspace/home'):
    fd = os.open(path, os.O_RDONLY)
    attributes = bytearray(28)
    try: fcntl.ioctl(fd, 0x801c581f, attributes)  # FS_IOC_FSGETXATTR
    except OSError as e: has('no attributes of %s: %s' % (path, e)); continue
    flags, extent, extents, project, cow = struct.unpack_from('<5I', attributes)
    for flags, project in ((flags, project + 7), (flags ^ 0x200, project), (flags, 0 if project else 9)):
        struct.pack_into('<5I', attributes, 0, flags, extent, extents, project, cow)
        try: fcntl.ioctl(fd, 0x401c5820, attributes); has('a project of ' + path)
        except OSError as e: e.errno in (1, 22) or has('a project of %s: %s' % (path, e))  # the kernel refuses it before the file system does
    for flag in (0x10, 0x20):  # immutable, append only
        try: fcntl.ioctl(fd, 0x40086602, struct.pack('<l', flag)); has('flags of ' + path)
        except OSError: pass
`

// TestAttackByProgramsThatGainPrivileges: neither root nor a program with the set-user-ID bit or capabilities of its file gains
// more than the box's root has: no other capability, namespace, packet, route, mount, limit or quota.
func TestAttackByProgramsThatGainPrivileges(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	id := newBox(t, l, nil)
	if r := sh(t, l, id, "cat >/tmp/probe.py <<'EOF'\n"+beyondRoot+"EOF\nsudo -n python3 /tmp/probe.py"); r.exit != 0 || r.out != "" {
		t.Errorf("exit status %d\n%s%s", r.exit, r.out, r.err)
	}
	// Set-user-ID programs of the image have no effect where the box could have put others.
	for _, dir := range []string{"/tmp", "/dev/shm", "/dev"} {
		r := sh(t, l, id, fmt.Sprintf("sudo -n install -o root -m 4755 $(command -v id) %s/rise 2>/dev/null && %[1]s/rise -u; true", dir))
		if strings.TrimSpace(r.out) == "0" {
			t.Errorf("%s: %+v", dir, r)
		}
	}
}

// TestWhatTheCapabilitiesOfRootAreFor: each capability of the box's root has an effect in its user namespace, which is lost without
// it. docs/boxes.md has the same list.
func TestWhatTheCapabilitiesOfRootAreFor(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	id := newBox(t, l, nil)
	documented, err := os.ReadFile("../docs/boxes.md")
	if err != nil {
		t.Fatal(err)
	}
	effects := map[string]string{
		"chown":            "touch /root/a && chown 33:33 /root/a",
		"dac_override":     "touch /workspace/home/private/a",
		"fowner":           "chmod 600 /workspace/home/f",
		"fsetid":           "cd /tmp && rm -f b && touch b && chgrp 33 b && chmod 2755 b && [ $(stat -c %a b) = 2755 ]",
		"kill":             "kill -0 $(pgrep -f 'sleep 9001')",
		"net_bind_service": "cp /usr/bin/true /usr/local/bin/bound && python3 -c 'import os, struct; os.setxattr(\"/usr/local/bin/bound\", \"security.capability\", struct.pack(\"<5I\", 0x02000001, 1 << 10, 0, 0, 0))' && bound",
		"setfcap":          "python3 -c 'import os, struct; open(\"/root/c\", \"w\"); os.setxattr(\"/root/c\", \"security.capability\", struct.pack(\"<5I\", 0x02000000, 1, 0, 0, 0))'",
		"setgid":           "setpriv --regid 33 --clear-groups true",
		"setuid":           "setpriv --reuid 33 true",
		"setpcap":          "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) != 0)'",
		"sys_chroot":       "chroot / true",
	}
	c, err := l.Start(t.Context(), id, ExecSpec{Args: []string{"sleep", "9001"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Kill(); _, _ = c.Wait(t.Context()) }()
	want(t, sh(t, l, id, "mkdir -m 700 private; touch f"), "")
	list := strings.Fields(strings.ReplaceAll(strings.ToLower(rootSh(t, l, id, "setpriv --dump | sed -n 's/^Capability bounding set: //p' | tr , ' '").out), "cap_", ""))
	if len(list) != len(effects) {
		t.Errorf("the capabilities of root are %v", list)
	}
	for _, name := range list {
		script := effects[name]
		if r := rootSh(t, l, id, script); r.exit != 0 {
			t.Errorf("with %s: %+v", name, r)
		}
		if r := run(t, l, id, ExecSpec{Args: []string{"setpriv", "--bounding-set", "-" + name, "sh", "-c", script}, User: "root"}); r.exit == 0 {
			t.Errorf("without %s: %+v", name, r)
		}
		if !strings.Contains(string(documented), "| `"+strings.ToUpper(name)+"` |") {
			t.Errorf("docs/boxes.md lacks %s", name)
		}
	}
}

// TestFilesOfRootOnTheHost: set-user-ID programs and capabilities of files, as the box's root makes them, belong on the host's disk
// to a user of the box's range, and are for its user namespace alone.
func TestFilesOfRootOnTheHost(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	id := newBox(t, l, nil)
	want(t, sh(t, l, id, `sudo -n sh -c 'install -m 4755 $(command -v id) /usr/local/bin/rise; install $(command -v id) /usr/local/bin/capable' && `+
		`sudo -n python3 -c 'import os, struct; os.setxattr("/usr/local/bin/capable", "security.capability", struct.pack("<5I", 0x02000001, 1, 0, 0, 0))' && rise -u`), "0")
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(l.dirs.upper(id), "usr/local/bin")
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "rise"), &st); err != nil || st.Mode&unix.S_ISUID == 0 || int(st.Uid) != r.ids().Host(0) || int(st.Gid) != r.ids().Host(0) {
		t.Errorf("%+v, %v", st, err)
	}
	value := make([]byte, 64)
	n, err := unix.Lgetxattr(filepath.Join(dir, "capable"), "security.capability", value)
	if err != nil || n != 24 || value[3] != 3 || int(binary.LittleEndian.Uint32(value[20:])) != r.ids().Host(0) {
		t.Errorf("capabilities of the file: %x, %v", value[:max(n, 0)], err)
	}
	for _, dir := range []string{l.dirs.boxes(), l.dirs.box(id)} { // no other user of the host reaches them
		if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", dir, fi.Mode(), err)
		}
	}
}

// restarted stops a box and starts it again with another setting, as a gateway does after the host has restarted.
func restarted(t *testing.T, l *Launcher, id policy.BoxID, root bool) {
	t.Helper()
	if err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	l.cfg.Root = root
	if _, err := l.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(t.Context(), Spec{ID: id, CA: launchertest.CA(t)}); err != nil {
		t.Fatal(err)
	}
}

// TestRootFollowsTheConfiguration: a box made without Config.Root gets it at its next start, not before. When it is taken away, the
// next command lacks it, and after the next start all of the box does.
func TestRootFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	sudo := func(works bool, when string) {
		t.Helper()
		if r := sh(t, l, id, "sudo -n id -u"); (r.exit == 0 && strings.TrimSpace(r.out) == "0") != works {
			t.Errorf("%s: %+v", when, r)
		}
		if st, err := l.State(t.Context(), id); err != nil || st.Root != (works || when == "taken away") {
			t.Errorf("%s: %+v, %v", when, st, err)
		}
	}
	sudo(false, "off")
	l.cfg.Root = true
	sudo(false, "given to a running box")
	if err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(t.Context(), Spec{ID: id, CA: launchertest.CA(t)}); err == nil { // without Renew
		t.Error("a box without namespaces has started")
	}
	restarted(t, l, id, true)
	sudo(true, "after a start that failed, and one that did not")
	if r := rootSh(t, l, id, "echo changed > /etc/sudoers.d/boxgate"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	restarted(t, l, id, true)
	want(t, rootSh(t, l, id, "cat /etc/sudoers.d/boxgate; rm /etc/sudoers.d/boxgate"), "changed") // root's files stay as it left them
	want(t, rootSh(t, l, id, "echo 'boxuser ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/boxgate"), "")
	before, input := io.Pipe()
	var out strings.Builder
	c, err := l.Start(t.Context(), id, ExecSpec{Args: []string{"sh", "-c", "read go; sudo -n id -u"}, Stdin: before, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	l.cfg.Root = false
	sudo(false, "taken away")
	_, err = io.WriteString(input, "go\n")
	if _, werr := c.Wait(t.Context()); errors.Join(err, werr) != nil || out.String() != "0\n" { // as docs/boxes.md has it
		t.Errorf("a command from before: %q, %v, %v", out.String(), err, werr)
	}
	restarted(t, l, id, false)
	sudo(false, "off after a start")
	want(t, sh(t, l, id, "awk '$5 == \"/\" {print $6}' /proc/self/mountinfo | grep -o nosuid"), "nosuid")
}

// TestSnapshotOfRootIsInert: set-user-ID programs in the snapshot of a box with root have no effect in a box without.
func TestSnapshotOfRootIsInert(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	id := newBox(t, l, nil)
	want(t, sh(t, l, id, "sudo -n install -m 4755 $(command -v id) /usr/local/bin/rise && rise -u"), "0")
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), id, "rooted", nil) })
	l.cfg.Root = false
	without := newBox(t, l, func(s *Spec) { s.Layers = layers })
	want(t, sh(t, l, without, "stat -c %U:%a /usr/local/bin/rise; rise -u; sudo -n id -u 2>/dev/null; true"), "root:4755\n1000")
	l.cfg.Root = true
	with := newBox(t, l, func(s *Spec) { s.Layers = layers })
	want(t, sh(t, l, with, "rise -u; sudo -n id -u"), "0\n0")
}
