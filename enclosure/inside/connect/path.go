package connect

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mostLinks is how many links the kernel follows in a path.
const mostLinks = 40

// lookUp opens the file at a path, on a thread that has the caller's root, directory and rights. To the links of /proc, that thread is not
// the caller: "self" is another process, and the supervisor's own descriptors are open to it. So a path that needs a link whose target has no
// name, as those in /proc/PID have, is looked up part by part.
func (c *call) lookUp(path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch err {
		case unix.EINTR:
		case unix.ELOOP: // or too many links
			return c.walk(path)
		default:
			return fd, err
		}
	}
}

// walk looks up a path part by part.
func (c *call) walk(path string) (at int, err error) {
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
			rest = "." // what is before is a directory
		}
		to, err := c.step(&at, part)
		if err != nil {
			return at, err
		}
		if to != "" {
			if links++; links > mostLinks {
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

// step goes on from a directory to a part of a path, or returns where that leads if it is a link. Links whose target has no name are followed,
// except the supervisor's own.
func (c *call) step(at *int, part string) (link string, err error) {
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

// levels are those of a directory such as PID/task/TID/fd, in which links are.
const levels = 4

// isOwn reports whether a directory is the supervisor's in /proc, or one below it with links.
func (c *call) isOwn(dir int) bool {
	proc, err := statAt(c.s.proc, ".")
	if err != nil {
		return true
	}
	task := "task/" + strconv.Itoa(os.Getpid())
	for range levels {
		if at, err := statAt(dir, task); err == nil && at.Dev == proc.Dev {
			return true
		}
		task = "../" + task
	}
	return false
}

// replace opens a file in the place of another.
func replace(fd *int, dir int, path string, flags int) error {
	next, err := open(dir, path, flags)
	if err != nil {
		return err
	}
	_ = unix.Close(*fd)
	*fd = next
	return nil
}
