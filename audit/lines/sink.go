package lines

import (
	"os"

	"golang.org/x/sys/unix"
)

// Sink is the destination of a [Writer].
type Sink interface {
	// Write is that of [io.Writer]. It may block indefinitely.
	Write(b []byte) (int, error)
	// TryWrite is Write if that does not block. Otherwise it does not write, and ok is false.
	TryWrite(b []byte) (n int, ok bool, err error)
}

// File returns the sink that writes to f: a file, pipe, socket or terminal.
func File(f *os.File) Sink {
	info, err := f.Stat()
	return file{f, err == nil && info.Mode().IsRegular()}
}

type file struct {
	*os.File
	regular bool
}

// atomicWrite is PIPE_BUF: a pipe that is ready for writing accepts this much without blocking. Sockets accept more.
const atomicWrite = 4096

// TryWrite implements [Sink]. Writing to a regular file does not block, because it goes to the page cache.
func (f file) TryWrite(b []byte) (int, bool, error) {
	if !f.regular && (len(b) > atomicWrite || !f.ready()) {
		return 0, false, nil
	}
	n, err := f.Write(b)
	return n, true, err
}

// ready reports whether the kernel accepts bytes without blocking. The descriptor is shared with the process that
// started the gateway, so it must not be made non-blocking instead.
func (f file) ready() bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n == 1 && fds[0].Revents == unix.POLLOUT
	})
	return err == nil && ready
}
