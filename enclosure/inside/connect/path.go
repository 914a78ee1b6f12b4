package connect

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links the kernel follows in a path.
const maxLinks = 40

// lookUp opens the file at a path, on a thread that has the caller's root, directory and rights. In /proc, however, that
// thread differs from the caller: "self" is another process, and the supervisor's own descriptors are accessible. So a path
// with magic links, such as links in /proc/PID, is looked up part by part.
func (c *call) lookUp(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch err {
		case unix.EINTR:
		case unix.ELOOP: // a magic link, or too many links
			return c.lookUpByParts(path)
		default:
			return fd, err
		}
	}
}

// lookUpByParts looks up a path part by part.
func (c *call) lookUpByParts(path string) (at int, err error) {
	if at, err = open(unix.AT_FDCWD, ".", unix.O_DIRECTORY); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(at)
		}
	}()
	for links := 0; path != ""; {
		if strings.HasPrefix(path, "/") {
			if err := replace(&at, unix.AT_FDCWD, "/", unix.O_DIRECTORY); err != nil {
				return at, err
			}
			path = strings.TrimLeft(path, "/")
			continue
		}
		part, rest, deeper := strings.Cut(path, "/")
		if rest = strings.TrimLeft(rest, "/"); deeper && rest == "" {
			rest = "." // the part before is a directory
		}
		to, err := c.lookUpPart(&at, part)
		if err != nil {
			return at, err
		}
		if to != "" {
			if links++; links > maxLinks {
				return at, unix.ELOOP
			}
			if rest != "" {
				to += "/"
			}
			rest = to + rest
		}
		path = rest
	}
	return at, nil
}

// lookUpPart opens one part of a path and replaces *at, or returns the target if the part is a symbolic link. It follows magic
// links, except the supervisor's own.
func (c *call) lookUpPart(at *int, part string) (link string, err error) {
	next, err := open(*at, part, unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	_, kind, err := stat(next)
	if err != nil || kind != unix.S_IFLNK {
		_ = unix.Close(*at)
		*at = next
		return "", err
	}
	defer unix.Close(next)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(next, &fs); err != nil {
		return "", err
	}
	process := strconv.Itoa(c.caller.process)
	switch {
	case fs.Type == unix.PROC_SUPER_MAGIC && !c.isProc(*at):
		if c.isOwn(*at) {
			return "", unix.EACCES
		}
		return "", replace(at, *at, part, 0)
	case fs.Type == unix.PROC_SUPER_MAGIC && part == "self":
		return process, nil
	case fs.Type == unix.PROC_SUPER_MAGIC && part == "thread-self":
		return process + "/task/" + strconv.Itoa(int(c.thread)), nil
	}
	return readlink(next, "")
}

// isProc reports whether a directory is /proc itself.
func (c *call) isProc(dir int) bool {
	at, err := statAt(dir, ".")
	proc, failed := statAt(c.s.proc, ".")
	return err == nil && failed == nil && at == proc
}

// procLinkDepth is the depth of a directory with links such as PID/task/TID/fd.
const procLinkDepth = 4

// isOwn reports whether a directory is the supervisor's in /proc, or one with links below it.
func (c *call) isOwn(dir int) bool {
	proc, err := statAt(c.s.proc, ".")
	if err != nil {
		return true
	}
	task := "task/" + strconv.Itoa(os.Getpid())
	for range procLinkDepth {
		if at, err := statAt(dir, task); err == nil && at.Dev == proc.Dev {
			return true
		}
		task = "../" + task
	}
	return false
}

// replace opens a file and replaces another descriptor with it.
func replace(fd *int, dir int, path string, flags int) error {
	next, err := open(dir, path, flags)
	if err != nil {
		return err
	}
	_ = unix.Close(*fd)
	*fd = next
	return nil
}
