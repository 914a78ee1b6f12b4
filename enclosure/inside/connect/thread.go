package connect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// thread is a thread of the supervisor that can look up paths and connect like a thread of the command: with its root and
// directory, its IDs and its capabilities. Its real and saved user stays root, so that no process of the command can signal
// or trace it.
type thread struct {
	root    int // its normal root directory
	fds     int // its descriptors in /proc
	diag    int // lists the sockets of its network namespace
	all     capabilities
	current identity
}

// identity determines access to files. The server at a Unix socket sees its user and group (SO_PEERCRED), with the process
// ID of the supervisor.
type identity struct {
	uid, gid     int
	groups       []uint32
	capabilities capabilities
}

type capabilities uint64

// newThread turns the calling thread into one.
func (s *Supervisor) newThread() (*thread, error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	t := &thread{root: s.root}
	var err error
	if t.fds, err = open(s.proc, "thread-self/fd", unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	if t.diag, err = dial(); err != nil {
		return nil, err
	}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return nil, err
	}
	t.all = capabilities(sets[0].Permitted) | capabilities(sets[1].Permitted)<<32
	groups, err := unix.Getgroups()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		t.current.groups = append(t.current.groups, uint32(g))
	}
	return t, t.resetRoot()
}

func (t *thread) close() {
	if t == nil {
		return
	}
	for _, fd := range []int{t.fds, t.diag} {
		_ = unix.Close(fd)
	}
}

// withIdentity runs f with the rights of another identity.
func (t *thread) withIdentity(who identity, f func() unix.Errno) unix.Errno {
	if err := t.setIDs(who); err != nil {
		return errnoOf(err)
	}
	return t.withCapabilities(who.capabilities&t.all, f)
}

// withoutCapabilities runs f without capabilities, for calls that need no other rights.
func (t *thread) withoutCapabilities(f func() unix.Errno) unix.Errno { return t.withCapabilities(0, f) }

func (t *thread) withCapabilities(effective capabilities, f func() unix.Errno) unix.Errno {
	if err := t.setEffective(effective); err != nil {
		return errnoOf(err)
	}
	errno := f()
	if err := t.setEffective(t.all); err != nil {
		os.Exit(1) // cannot fail: the capabilities are permitted
	}
	return errno
}

// setIDs changes the IDs of this thread only. The functions of package unix change all threads.
func (t *thread) setIDs(who identity) error {
	if who.uid == t.current.uid && who.gid == t.current.gid && slices.Equal(who.groups, t.current.groups) {
		return nil
	}
	const same = ^uintptr(0)
	_, _, noGroups := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(who.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(who.groups))), 0)
	_, _, noGroup := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(who.gid), same)
	_, _, noUser := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(who.uid), same)
	if noGroups|noGroup|noUser != 0 {
		t.current = identity{uid: -1}
		return fmt.Errorf("becoming user %d: %w", who.uid, noGroups|noGroup|noUser)
	}
	t.current = who
	return nil
}

func (t *thread) setEffective(set capabilities) error {
	sets := [2]unix.CapUserData{
		{Permitted: uint32(t.all), Effective: uint32(set)}, {Permitted: uint32(t.all >> 32), Effective: uint32(set >> 32)},
	}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
}

// setRoot sets the thread's root and working directory.
func (t *thread) setRoot(root, dir int) error {
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Fchdir(dir)
}

// resetRoot returns to the supervisor's root, with the thread's descriptors as working directory.
func (t *thread) resetRoot() error { return t.setRoot(t.root, t.fds) }

// addressOf returns the address of an open file, relative to the directory of descriptors.
func (t *thread) addressOf(file int) []byte {
	return append(append([]byte{unix.AF_UNIX, 0}, strconv.Itoa(file)...), 0)
}

// nameOf returns the path of an open file.
func (t *thread) nameOf(file int) string {
	path, err := readlink(t.fds, strconv.Itoa(file))
	if err != nil {
		return "?"
	}
	return path
}

// status is the required part of /proc/TID/status.
type status struct {
	process  int
	identity identity
}

// readStatus reads the caller's status.
func (c *call) readStatus() error {
	if err := c.procDir(); err != nil {
		return err
	}
	st, err := statusIn(c.dir)
	if err != nil {
		return err
	}
	if st.identity.capabilities != 0 {
		at, err := statAt(c.dir, "ns/user")
		if err != nil {
			return err
		}
		if at != c.s.userns { // capabilities in another user namespace do not count for files of the host
			st.identity.capabilities = 0
		}
	}
	c.caller = st
	return nil
}

// statusIn reads the status of a thread from its directory in /proc.
func statusIn(dir int) (status, error) {
	fd, err := unix.Openat(dir, "status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return status{}, err
	}
	f := os.NewFile(uintptr(fd), "status")
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<20)) // with up to 65536 groups
	if err != nil {
		return status{}, err
	}
	return parseStatus(data)
}

func parseStatus(data []byte) (st status, err error) {
	found := 0
	for line := range strings.Lines(string(data)) {
		key, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		switch {
		case key == "Tgid" && len(fields) == 1:
			st.process, err = strconv.Atoi(fields[0])
		case key == "Uid" && len(fields) == 4: // real, effective, saved, file system
			st.identity.uid, err = strconv.Atoi(fields[1])
		case key == "Gid" && len(fields) == 4:
			st.identity.gid, err = strconv.Atoi(fields[1])
		case key == "Groups":
			st.identity.groups, err = numbers(fields)
		case key == "CapEff" && len(fields) == 1:
			var set uint64
			set, err = strconv.ParseUint(fields[0], 16, 64)
			st.identity.capabilities = capabilities(set)
		default:
			continue
		}
		if err != nil {
			return status{}, err
		}
		found++
	}
	if found != 5 {
		return status{}, errors.New("the status of a thread is incomplete")
	}
	return st, nil
}

func numbers(fields []string) (out []uint32, err error) {
	for _, f := range fields {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, uint32(n))
	}
	return out, nil
}
