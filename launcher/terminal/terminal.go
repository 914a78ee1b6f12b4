// Package terminal receives the pseudo-terminals that the OCI runtime opens in boxes.
package terminal

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Size is the size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Socket receives from a runtime the master side of a terminal that it has opened in a box.
type Socket struct{ ln *net.UnixListener }

// Listen creates a socket at a path that only the gateway and the runtime can reach.
func Listen(path string) (*Socket, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("the socket for a terminal: %w", err)
	}
	return &Socket{ln}, nil
}

// Close removes the socket.
func (s *Socket) Close() error { return s.ln.Close() }

// receiveTimeout bounds the wait for the terminal, which the runtime sends before it exits.
const receiveTimeout = 5 * time.Second

// Receive returns the master side of the terminal. Call it after the runtime has started the command.
func (s *Socket) Receive() (*os.File, error) {
	end := time.Now().Add(receiveTimeout)
	if err := s.ln.SetDeadline(end); err != nil {
		return nil, err
	}
	conn, err := s.ln.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("the runtime sent no terminal: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	name, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	_, n, flags, _, err := conn.ReadMsgUnix(name, control)
	if err != nil {
		return nil, fmt.Errorf("the runtime sent no terminal: %w", err)
	}
	files, err := filesIn(control[:n])
	if err == nil && (len(files) != 1 || flags&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("the runtime sent %d files instead of a terminal", len(files))
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return Master(files[0])
}

// Master checks that a file which was opened in a box is the master side of a terminal, and returns it, or closes it. f may be
// nil.
func Master(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, errors.New("no terminal was opened in the box")
	}
	err := checkMaster(int(f.Fd()))
	if err != nil {
		f.Close()
		return nil, err
	}
	return pollable(f)
}

// filesIn returns the descriptors in a control message.
func filesIn(control []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "terminal"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// checkMaster refuses anything but the master side of a terminal: /dev in a box belongs to its root, who may have replaced the
// device that the runtime opens. It checks the device number and not the file system: gVisor opens the host's multiplexer,
// which need not be on devpts.
func checkMaster(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != 5 || unix.Minor(st.Rdev) != 2 {
		return errors.New("the runtime opened something in the box that is not a terminal: /dev/ptmx has been replaced there")
	}
	_, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN) // fails unless it has a terminal
	return err
}

// pollable returns a file whose reads and writes wait in Go's poller and can be interrupted.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// Resize sets the size of a terminal. The kernel sends SIGWINCH to its foreground processes.
func Resize(master *os.File, s Size) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ioctl error
	err = raw.Control(func(fd uintptr) {
		ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
	return errors.Join(err, ioctl)
}
