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

// Object is a file, whatever its names.
type Object struct{ Dev, Ino uint64 }

// open opens a file without its content.
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

// bound is a listening Unix socket that is bound to a file, as the kernel lists them. The kernel gives the file's number in 32 bits, and
// not the device that stat(2) gives: the file can be another.
type bound struct {
	inode  uint32 // of the socket, as in /proc/PID/fd
	cookie uint64 // of the socket: no other ever has it
	file   uint32
}

// The message formats are those of linux/unix_diag.h.
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

// listening lists the Unix sockets that listen. The calls are made here because the poller of package netlink takes several times as long,
// for each connection of the command.
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
			continue // not the kernel's
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

// boundOf reads a message about a socket, if it is bound to a file.
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

// mayReach reports whether a file is the socket of one that the caller has named, or was bound by the command: a process of the command has
// it open, and it is of the command's network namespace, or of one that a process of the command is in.
func (c *call) mayReach(at Object) bool {
	if slices.Contains(c.s.reach, at) {
		return true
	}
	for range 2 { // a long list may leave one out while others change
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

// isKnown reports whether a file was found to be bound by a socket that is still there: as long as it is, no other file can have
// the same number.
func (s *Supervisor) isKnown(at Object, cookie uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[at]
	return ok && known == cookie
}

// isBoundBy looks for a socket among the descriptors of the command's processes, and asks the kernel which file it is bound to.
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
		if len(s.known) >= mostKnown {
			clear(s.known)
		}
		s.known[at] = b.cookie
		return true
	})
}

// isBoundElsewhere looks for a socket that is bound to a file, of a network namespace that a process of the command has entered. It can
// enter none but its own and those that the command has made.
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
	found, ok := s.elsewhere[at]
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
		if len(s.elsewhere) >= mostKnown {
			clear(s.elsewhere)
		}
		s.elsewhere[at] = found
		return true
	})
}

// descriptor is one of a process of the command. It is no proof of anything: what it leads to is asked each time.
type descriptor struct{ pid, fd int }

// hasSocket reports whether a function says so of a socket that a process of the command has open, given what its link in /proc says.
func (s *Supervisor) hasSocket(is func(link string, pid, fd int) bool) bool {
	for _, pid := range entries(s.proc, ".") {
		if pid == os.Getpid() { // it has sockets of the command only while it connects them
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

// entries returns the numbers among the names of a directory.
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

// ioctls of sockets, of linux/un.h and linux/sockios.h.
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

// opened identifies what an ioctl opens.
func opened(socket int, request uint) (Object, error) {
	fd, err := unix.IoctlRetInt(socket, request)
	if err != nil {
		return Object{}, err
	}
	defer unix.Close(fd)
	at, _, err := stat(fd)
	return at, err
}
