package foreign

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxResolvConf  = 16 << 10
	resolvConfTime = 2 * time.Second
)

// readers bounds how many sandboxes' files are being read. A file system of the sandbox's own may never answer, and keep the
// thread that asks it.
var readers = make(chan struct{}, 4)

// ResolvConf returns the first bytes of /etc/resolv.conf as a process in a network namespace sees it; nil if there is none, or
// it cannot be read at once. What is read may be anything: it is the sandbox's. It looks at one process first, if hint is not 0.
func ResolvConf(ctx context.Context, ns *os.File, hint int) []byte {
	select {
	case readers <- struct{}{}:
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolvConfTime)
	defer cancel()
	process := inhabitant(PathOf(ns), hint)
	if process == nil {
		<-readers
		return nil
	}
	done := make(chan []byte, 1)
	go func() {
		defer func() { <-readers }()
		defer process.Close()
		text, err := readBelow(process, "etc/resolv.conf")
		if err != nil || hasEnded(process) { // its ID may be another's
			text = nil
		}
		done <- text
	}()
	select {
	case text := <-done:
		return text
	case <-ctx.Done():
		return nil
	}
}

// readBelow reads a regular file below the root of a process, which no link leads out of.
func readBelow(process *os.File, path string) ([]byte, error) {
	pid, err := pidOf(process)
	if err != nil {
		return nil, err
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	// The path is opened only once it is known to name a file: opening a device or a pipe has effects.
	place, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, err
	}
	defer unix.Close(place)
	var is unix.Stat_t
	if err := unix.Fstat(place, &is); err != nil {
		return nil, err
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG || isKernels(place, &is) {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", place), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxResolvConf))
}

// isKernels reports whether what is a regular file by its mode is made by the kernel as it is read, with the gateway's rights: to read
// /proc/kmsg, for one, takes the log from whoever else reads it. Such files have no length, except those of sysfs.
func isKernels(file int, is *unix.Stat_t) bool {
	var of unix.Statfs_t
	return is.Size == 0 || unix.Fstatfs(file, &of) != nil || of.Type == unix.SYSFS_MAGIC || of.Type == unix.PROC_SUPER_MAGIC
}

// pidOf returns the ID of a process.
func pidOf(process *os.File) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", process.Fd()))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "\nPid:\t")
	line, _, _ := strings.Cut(after, "\n")
	return strconv.Atoi(line)
}
