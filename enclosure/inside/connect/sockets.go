package connect

import (
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Object identifies a file independently of its names.
type Object struct{ Dev, Ino uint64 }

// open opens a file with O_PATH.
func open(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// stat identifies an open file, and returns its type (S_IFMT).
func stat(fd int) (Object, uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return Object{st.Dev, st.Ino}, st.Mode & unix.S_IFMT, err
}

func statAt(dir int, path string) (Object, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, path, &st, 0)
	return Object{st.Dev, st.Ino}, err
}

func readlink(dir int, path string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, path, buf)
	return string(buf[:max(n, 0)]), err
}

// bound is a listening Unix socket that is bound to a file, as listed by the kernel. The kernel reports the inode number
// truncated to 32 bits, and a device number other than that of stat(2), so the file can be another one.
type bound struct {
	inode  uint32 // of the socket, as in /proc/PID/fd
	cookie uint64 // of the socket, never reused
	file   uint32
}

// The message formats of linux/unix_diag.h.
const (
	diagRequestSize = 24
	diagMessageSize = 16
	showVFS         = 2       // UDIAG_SHOW_VFS
	attributeVFS    = 1       // UNIX_DIAG_VFS
	inListening     = 1 << 10 // TCP_LISTEN
)

// dial connects to the kernel's list of sockets (sock_diag(7)) of this thread's network namespace.
func dial() (int, error) {
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
}

// listening lists the listening Unix sockets. It makes the calls itself, because package netlink's poller takes several
// times as long, for each connection of the command.
func listening(conn int) ([]bound, error) {
	request := make([]byte, unix.SizeofNlMsghdr+diagRequestSize)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.SizeofNlMsghdr:]
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], inListening)
	binary.NativeEndian.PutUint32(body[12:], showVFS)
	if err := unix.Sendto(conn, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var out []bound
	for buf := make([]byte, 1<<16); ; {
		n, from, err := unix.Recvfrom(conn, buf, 0)
		if err != nil && err != unix.EINTR {
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); err != nil || !ok || sender.Pid != 0 {
			continue // not from the kernel
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return out, nil
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			}
			if b, ok := boundOf(m.Data); ok {
				out = append(out, b)
			}
		}
	}
}

// boundOf parses a message about a socket; false if the socket is not bound to a file.
func boundOf(data []byte) (b bound, ok bool) {
	if len(data) < diagMessageSize {
		return b, false
	}
	b = bound{inode: binary.NativeEndian.Uint32(data[4:]), cookie: binary.NativeEndian.Uint64(data[8:])}
	attributes, err := netlink.UnmarshalAttributes(data[diagMessageSize:])
	for _, a := range attributes {
		if a.Type == attributeVFS && len(a.Data) >= 8 {
			b.file, ok = binary.NativeEndian.Uint32(a.Data), err == nil
		}
	}
	return b, ok
}

// mayReach reports whether a file is one of the allowed sockets, or was bound by the command: a process of the command has
// the socket open, and the socket is in the command's network namespace, or in one that a process of the command is in.
func (c *call) mayReach(at Object) bool {
	if slices.Contains(c.s.allowed, at) {
		return true
	}
	for range 2 { // a long list may miss a socket while others change
		list, err := listening(c.t.diag)
		if err != nil {
			return false
		}
		for _, b := range list {
			if b.file == uint32(at.Ino) && (c.s.isKnown(at, b.cookie) || c.s.isBoundBy(b, at)) {
				return true
			}
		}
	}
	return c.s.isBoundElsewhere(at)
}

// isKnown reports whether the file is known to be bound by a socket that still exists: as long as it does, the inode number
// cannot be reused.
func (s *Supervisor) isKnown(at Object, cookie uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.boundFiles[at]
	return ok && known == cookie
}

// isBoundBy looks for a socket among the descriptors of the command's processes, and asks the kernel for the file that it
// is bound to.
func (s *Supervisor) isBoundBy(b bound, at Object) bool {
	link := "socket:[" + strconv.FormatUint(uint64(b.inode), 10) + "]"
	return s.hasSocket(func(to string, pid, fd int) bool {
		if to != link {
			return false
		}
		if file, _, err := boundTo(pid, fd); err != nil || file != at {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.boundFiles) >= maxBoundFiles {
			clear(s.boundFiles)
		}
		s.boundFiles[at] = b.cookie
		return true
	})
}

// isBoundElsewhere looks for a socket bound to the file in a network namespace that a process of the command has entered. A
// process can only enter its own namespace and namespaces that the command has made.
func (s *Supervisor) isBoundElsewhere(at Object) bool {
	made := map[Object]bool{}
	for _, pid := range entries(s.proc, ".") {
		if ns, err := statAt(s.proc, strconv.Itoa(pid)+"/ns/net"); err == nil && ns != s.netns {
			made[ns] = true
		}
	}
	if len(made) == 0 {
		return false
	}
	is := func(d descriptor) bool {
		file, ns, err := boundTo(d.pid, d.fd)
		return err == nil && file == at && made[ns]
	}
	s.mu.Lock()
	found, ok := s.boundElsewhere[at]
	s.mu.Unlock()
	if ok && is(found) {
		return true
	}
	return s.hasSocket(func(_ string, pid, fd int) bool {
		found = descriptor{pid, fd}
		if !is(found) {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.boundElsewhere) >= maxBoundFiles {
			clear(s.boundElsewhere)
		}
		s.boundElsewhere[at] = found
		return true
	})
}

// descriptor is a descriptor of a process of the command. It is only a hint: its socket is checked each time.
type descriptor struct{ pid, fd int }

// hasSocket calls is for the sockets that processes of the command have open, with their links in /proc, and reports
// whether it returned true for one.
func (s *Supervisor) hasSocket(is func(link string, pid, fd int) bool) bool {
	for _, pid := range entries(s.proc, ".") {
		if pid == os.Getpid() { // the supervisor has sockets of the command only while it connects them
			continue
		}
		for _, fd := range entries(s.proc, strconv.Itoa(pid)+"/fd") {
			to, err := readlink(s.proc, strconv.Itoa(pid)+"/fd/"+strconv.Itoa(fd))
			if err == nil && strings.HasPrefix(to, "socket:") && is(to, pid, fd) {
				return true
			}
		}
	}
	return false
}

// entries returns the numeric names in a directory.
func entries(dir int, path string) (out []int) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // the process has ended
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && !strings.HasPrefix(name, "+") {
			out = append(out, n)
		}
	}
	return out
}

// ioctls of sockets, from linux/un.h and linux/sockios.h.
const (
	openBoundFile        = 0x89e0 // SIOCUNIXFILE
	openNetworkNamespace = 0x894c // SIOCGSKNS
)

// boundTo returns the file that a socket of a process is bound to, and the network namespace of the socket.
func boundTo(pid, fd int) (file, netns Object, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return file, netns, err
	}
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return file, netns, err
	}
	defer unix.Close(socket)
	if file, err = opened(socket, openBoundFile); err == nil {
		netns, err = opened(socket, openNetworkNamespace)
	}
	return file, netns, err
}

// opened identifies the file that an ioctl opens.
func opened(socket int, request uint) (Object, error) {
	fd, err := unix.IoctlRetInt(socket, request)
	if err != nil {
		return Object{}, err
	}
	defer unix.Close(fd)
	at, _, err := stat(fd)
	return at, err
}

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
