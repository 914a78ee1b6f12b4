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

// object is a file, whatever its names.
type object struct{ dev, ino uint64 }

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
func stat(fd int) (object, uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return object{st.Dev, st.Ino}, st.Mode & unix.S_IFMT, err
}

func statAt(dir int, path string) (object, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, path, &st, 0)
	return object{st.Dev, st.Ino}, err
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

// mayReach reports whether a file is the socket of one that the caller has named, or was bound by the command: it is listed in the
// command's network namespace, or in one that the calling process has made itself, and a process of the command has it open.
func (c *call) mayReach(at object) bool {
	if slices.Contains(c.s.reach, at) {
		return true
	}
	for range 2 { // a long list may leave one out while others change
		list, err := c.listening()
		if err != nil {
			return false
		}
		for _, b := range list {
			if b.file == uint32(at.ino) && (c.s.isKnown(at, b.cookie) || c.s.isBoundBy(b, at)) {
				return true
			}
		}
	}
	return false
}

// listening lists the sockets of the command's network namespace, and of the caller's if that is another.
func (c *call) listening() ([]bound, error) {
	list, err := listening(c.t.diag)
	if err != nil {
		return nil, err
	}
	if at, err := statAt(c.dir, "ns/net"); err != nil || at == c.s.netns {
		return list, err
	}
	fd, err := unix.Openat(c.dir, "ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	conn, err := c.t.dialIn(fd)
	if err != nil {
		return nil, err
	}
	defer unix.Close(conn)
	more, err := listening(conn)
	return append(list, more...), err
}

// isKnown reports whether a file was found to be bound by a socket that is still there: as long as it is, no other file can have
// the same number.
func (s *Supervisor) isKnown(at object, cookie uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[at]
	return ok && known == cookie
}

// isBoundBy looks for a socket among the descriptors of the command's processes, and asks the kernel which file it is bound to.
func (s *Supervisor) isBoundBy(b bound, at object) bool {
	link := "socket:[" + strconv.FormatUint(uint64(b.inode), 10) + "]"
	for _, pid := range entries(s.proc, ".") {
		for _, fd := range entries(s.proc, strconv.Itoa(pid)+"/fd") {
			if to, err := readlink(s.proc, strconv.Itoa(pid)+"/fd/"+strconv.Itoa(fd)); err != nil || to != link {
				continue
			}
			if file, err := fileOf(pid, fd); err != nil || file != at {
				continue
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.known) >= mostKnown {
				clear(s.known)
			}
			s.known[at] = b.cookie
			return true
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

// openBoundFile is SIOCUNIXFILE of linux/un.h.
const openBoundFile = 0x89e0

// fileOf returns the file that a socket of a process is bound to.
func fileOf(pid, fd int) (object, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return object{}, err
	}
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return object{}, err
	}
	defer unix.Close(socket)
	file, err := unix.IoctlRetInt(socket, openBoundFile)
	if err != nil {
		return object{}, err
	}
	defer unix.Close(file)
	at, _, err := stat(file)
	return at, err
}
