// Package sandboxns opens network namespaces made by other programs, so that boxes can be attached to them. It opens only
// network namespaces, and is not affected if a path or container name refers to something else a moment later.
package sandboxns

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/firewall/namespace"
	"boxgate/policy/document"
)

// Found is an open network namespace.
type Found struct {
	NS        *os.File // closed by the caller
	Container string   // ID of its Docker container; "" if it was not found by container
}

// Open opens the network namespace of a. If the namespace is not found or check rejects it, the error is a
// *[document.InvalidError].
func Open(ctx context.Context, a api.Attached, check func(path string) error) (Found, error) {
	pointer, open := "/netns", func() (Found, error) {
		path := cmp.Or(a.NetNS, a.Ref)
		ns, err := OpenNetNS(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no file %s; `ip netns list` lists the namespaces below /run/netns", path)
		}
		return Found{NS: ns}, err
	}
	switch a.Kind {
	case api.AttachPID, api.AttachOCI:
		pointer, open = "/pid", func() (Found, error) {
			ns, err := OpenNetNS(netNSOf(a.PID))
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("there is no process %d in the gateway's PID namespace", a.PID)
			}
			return Found{NS: ns}, err
		}
	case api.AttachTap: // its namespace has no interface and no process: the box is bound to it as others are to theirs
		pointer, open = "/tap", func() (Found, error) {
			ns, err := namespace.New()
			return Found{NS: os.NewFile(uintptr(ns), "network namespace")}, err
		}
	case api.AttachDocker:
		pointer, open = "/container", func() (Found, error) { return openContainer(ctx, cmp.Or(a.Container, a.Ref)) }
	}
	found, err := open()
	if err != nil {
		return Found{}, invalidAt(pointer, err)
	}
	if err := check(PathOf(found.NS)); err != nil {
		return Found{}, errors.Join(invalidAt(pointer, err), found.NS.Close())
	}
	return found, nil
}

// PathOf returns a path of an open namespace.
func PathOf(ns *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", ns.Fd()) }

// netNSOf returns the path of a process's network namespace.
func netNSOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// openContainer opens the network namespace of a running Docker container. The container's process may end at any moment,
// and its ID be reused by another sandbox. That is detected by asking Docker again, and as Docker may not have noticed
// yet, by [IsFirst].
func openContainer(ctx context.Context, ref string) (Found, error) {
	c, err := inspect(ctx, ref)
	if err != nil {
		return Found{}, err
	}
	if c.PID == 0 {
		return Found{}, errors.New("the container is not running")
	}
	process, err := openProcess(c.PID)
	if err != nil {
		return Found{}, errRestarted
	}
	defer process.Close()
	now, err := inspect(ctx, ref)
	if err != nil {
		return Found{}, err
	}
	if now != c {
		return Found{}, errRestarted
	}
	ns, err := OpenNetNS(netNSOf(c.PID))
	if err != nil {
		return Found{}, err
	}
	err = IsFirst(func(file string) ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/%d/%s", c.PID, file)) }, c.ID, c.Started)
	if hasEnded(process) {
		err = errRestarted
	}
	if err != nil {
		return Found{}, errors.Join(err, ns.Close())
	}
	return Found{NS: ns, Container: c.ID}, nil
}

// errRestarted means that a container was restarted while its namespace was being opened.
var errRestarted = errors.New("the container was restarted just now: attach it again")

// OpenNetNS opens a network namespace. It opens the path with O_PATH first and checks that it is a namespace, because
// opening a device or a pipe has side effects.
func OpenNetNS(path string) (*os.File, error) {
	place, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	notOne := fmt.Errorf("%s is not a network namespace", path)
	var at unix.Statfs_t
	if err := unix.Fstatfs(int(place.Fd()), &at); err != nil || at.Type != unix.NSFS_MAGIC {
		return nil, notOne
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
	if err != nil {
		return nil, err
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(notOne, f.Close())
	}
	return f, nil
}

func invalidAt(pointer string, err error) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: err.Error()}}}
}

// Sandbox identifies the sandbox that a box is attached to.
type Sandbox struct {
	Kind, Ref string
	Container string // Docker container ID; "" if it is not a container
	NetNS     string // path that a CNI attachment was made with
	Pin       string // path of the pinned namespace; "" while the box is not attached
}

// Place is the current location of a sandbox.
type Place struct {
	// Process is a process in the pinned namespace, nil if unknown. While it runs, the sandbox is unchanged.
	Process *os.File
	// Moved is another namespace that the sandbox runs in now; its NS is nil if the sandbox has not moved.
	Moved Found
	// Ended is the reason why the sandbox has lost its network namespace; "" if it has one.
	Ended string
}

// Locate finds the current place of a sandbox. Containers are found by ID, which is never reused, not by name. An error
// means that the place is unknown at the moment.
func Locate(ctx context.Context, s Sandbox) (Place, error) {
	if s.Kind == api.AttachDocker && s.Container != "" {
		return locateContainer(ctx, s)
	}
	if s.Pin == "" && s.Kind == api.AttachOCI {
		return Place{Ended: "its container has ended"}, nil
	}
	if s.Pin == "" {
		return Place{}, nil // a path or process ID that reappears may belong to another sandbox
	}
	if s.Kind == api.AttachTap {
		return Place{}, nil // a virtual machine may open the tap any time, until it is detached
	}
	hint := 0
	ended := "no process runs in its network namespace"
	switch s.Kind {
	case api.AttachPID:
		hint, _ = strconv.Atoi(s.Ref)
	case api.AttachNetNS, api.AttachCNI:
		path := cmp.Or(s.NetNS, s.Ref)
		if Same(s.Pin, path) {
			return Place{}, nil
		}
		ended = fmt.Sprintf("%s does not name its network namespace any more", path)
	}
	if p := inhabitant(s.Pin, hint); p != nil {
		return Place{Process: p}, nil
	}
	return Place{Ended: ended}, nil
}

// locateContainer is Locate for a Docker container. While Docker does not respond, it looks for processes in the
// namespace instead.
func locateContainer(ctx context.Context, s Sandbox) (Place, error) {
	c, err := inspect(ctx, s.Container)
	switch {
	case errors.Is(err, errNoContainer):
		return Place{Ended: "its container was removed"}, nil
	case err != nil && s.Pin == "":
		return Place{}, err
	case err != nil:
		if p := inhabitant(s.Pin, 0); p != nil {
			return Place{Process: p}, nil
		}
		return Place{Ended: "its container has ended, and Docker does not answer"}, nil
	case c.ID != s.Container:
		return Place{}, fmt.Errorf("asked for container %s, Docker answered about %q", s.Container, c.ID)
	case c.PID == 0:
		return Place{Ended: "its container is stopped; the box is attached again when it starts"}, nil
	}
	if s.Pin != "" && Same(s.Pin, netNSOf(c.PID)) {
		return Place{Process: inhabitant(s.Pin, c.PID)}, nil
	}
	found, err := openContainer(ctx, s.Container)
	if err == nil && s.Pin != "" && Same(s.Pin, PathOf(found.NS)) {
		return Place{Process: inhabitant(s.Pin, c.PID)}, found.NS.Close()
	}
	return Place{Moved: found}, err
}

// openProcess returns a pidfd, which keeps referring to the process even if its ID is reused.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// hasEnded reports whether a process has ended.
func hasEnded(process *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// AwaitEnd returns when a process has ended, or its pidfd is closed. It blocks a goroutine, but no thread.
func AwaitEnd(process *os.File) {
	raw, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// inhabitant returns a pidfd of a process in the network namespace at a path, or nil if the namespace is empty. It tries the
// process hint first, if that is not 0.
func inhabitant(path string, hint int) *os.File {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return nil
	}
	if p := processIn(ns, hint); p != nil {
		return p
	}
	for range scans {
		if p := scanProcesses(ns); p != nil {
			return p
		}
	}
	return nil
}

// scans is how often the process list is scanned before a namespace counts as empty: a single scan may miss a process
// whose parent ends during the scan.
const scans = 3

// scanProcesses scans all processes.
func scanProcesses(ns unix.Stat_t) *os.File {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // a partial listing is fine
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p := processIn(ns, pid); p != nil {
				return p
			}
		}
	}
	return nil
}

// processIn returns a pidfd of a process if it is in the network namespace, nil otherwise.
func processIn(ns unix.Stat_t, pid int) *os.File {
	if pid <= 0 || !isAt(ns, netNSOf(pid)) {
		return nil
	}
	process, err := openProcess(pid)
	if err != nil {
		return nil
	}
	if isAt(ns, netNSOf(pid)) && !hasEnded(process) { // check again: the ID may have been reused
		return process
	}
	process.Close()
	return nil
}

// isAt reports whether the namespace at path is ns.
func isAt(ns unix.Stat_t, path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Dev == ns.Dev && st.Ino == ns.Ino
}

// Same reports whether both paths refer to the same namespace.
func Same(a, b string) bool {
	var st unix.Stat_t
	return unix.Stat(a, &st) == nil && isAt(st, b)
}

// This part distinguishes the first process of a container from a process that reused its ID: until Docker has noticed
// the end of a process, it still reports its ID.

// ErrNotFirst means that a process is not the first process of a container.
var ErrNotFirst = errors.New("the process that Docker names is not the one that the container began with: it was restarted or ended just now, try again")

// containerIDs matches the container IDs in cgroup names made by Docker, Podman and systemd.
var containerIDs = regexp.MustCompile(`[0-9a-f]{64}`)

// startSlack is how much later than its container a process may seem to have started: the kernel's start times have a
// resolution of 1/100 s, and the clock may be corrected.
const startSlack = time.Second

// IsFirst checks that a process is the first of a container, by its cgroup. If the cgroup is inconclusive, it compares
// start times: a process that reused the ID also started later. read reads a file of the process's directory in /proc;
// the caller ensures that all reads are of the same process. id and started are the container's ID and start time
// reported by Docker. The error is [ErrNotFirst] or that of read.
func IsFirst(read func(file string) ([]byte, error), id, started string) error {
	groups, err := read("cgroup")
	if err != nil {
		return err
	}
	ids := containerIDs.FindAllString(string(groups), -1)
	if slices.Contains(ids, id) {
		return nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for _, other := range ids {
		if !bytes.Contains(own, []byte(other)) { // otherwise the gateway itself runs in that container, and so does everything here
			return ErrNotFirst
		}
	}
	stat, err := read("stat")
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, started)
	if err != nil || at.Year() < 1970 { // Docker's zero time: never started
		return ErrNotFirst
	}
	age, err := ageOf(stat)
	if err != nil {
		return err
	}
	if time.Now().Add(-age).After(at.Add(startSlack)) {
		return ErrNotFirst
	}
	return nil
}

// ageOf returns the age of a process, from its /proc/PID/stat.
func ageOf(stat []byte) (time.Duration, error) {
	const startTime, perSecond = 22, 100 // see proc_pid_stat(5); the clock ticks of /proc are always 1/100 s
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	fields := strings.Fields(string(rest)) // from the third field on
	if len(fields) <= startTime-3 {
		return 0, errors.New("/proc/PID/stat of the process could not be parsed")
	}
	ticks, err := strconv.ParseInt(fields[startTime-3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("when the process started: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()) - time.Duration(ticks)*(time.Second/perSecond), nil
}
