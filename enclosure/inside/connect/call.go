package connect

import (
	"bytes"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif of the kernel.
type notification struct {
	id     uint64
	thread uint32 // its ID in the PID namespace of the supervisor
	_      uint32 // flags
	_      int32  // number of the system call: always connect
	_      uint32 // architecture
	_      uint64 // instruction
	args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32 // negative, or 0
	flags uint32
}

// ioctl calls ioctl(2). The conversion to uintptr must be in the call itself, because arg may point to the stack, which can
// move.
func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	for {
		switch _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// receive waits for the next call.
func (s *Supervisor) receive() (notification, error) {
	for {
		n := notification{} // the kernel requires zeroes
		err := ioctl(s.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if err != unix.ENOENT { // ENOENT: the caller was killed in between
			return n, err
		}
	}
}

// call is one call of connect(2). Its fields belong to the current worker: a thread, or a goroutine that waits.
type call struct {
	notification
	s         *Supervisor
	t         *thread
	process   int // pidfd of the thread or its process; 0: not open
	dir       int // its directory in /proc; 0: not open
	socket    int // the command's socket; 0: not open
	file      int // target of a Unix socket, after it was judged; 0: not open
	cookie    uint64
	family    int
	address   []byte       // to connect to
	caller    status       // credentials of a caller that connects a Unix socket
	attempted bool         // the socket may have been connected
	isRepeat  bool         // a previous call made the attempt, and this one returns its result
	pending   pendingState // while the connection is pending

	previous    *call         // an unfinished call of the same thread; with mu
	assigned    chan struct{} // closed when a thread takes the call
	interrupted chan struct{} // closed when the command's thread has made another call
	ended       bool          // with mu
	processID   int           // process of the thread; with mu; 0: not looked up, -1: unknown
}

// maxAddress is the size of struct sockaddr_storage.
const maxAddress = 128

// errPending means that the connection is pending, and that the caller waits for it. The kernel does not use this error
// number.
const errPending = unix.Errno(4096)

// connect performs the call, and returns the errno for the command; 0 on success.
func (c *call) connect() unix.Errno {
	if c.socket > 0 { // the connection was pending
		return c.connectAgain()
	}
	if errno := c.readArguments(); errno != 0 {
		return errno
	}
	var err error
	if c.family, err = unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return errnoOf(err) // ENOTSOCK
	}
	if c.cookie, err = unix.GetsockoptUint64(c.socket, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return errnoOf(err)
	}
	if errno, ok := c.s.popUndelivered(c.thread, c.cookie, c.address); ok {
		c.attempted, c.isRepeat = true, true
		return errno
	}
	if c.family != unix.AF_UNIX {
		return c.t.withoutCapabilities(func() unix.Errno { return c.connectTo(c.address) })
	}
	if err := c.readStatus(); err != nil {
		return errnoOf(err)
	}
	path, ok := c.path()
	if !ok { // an abstract name, which belongs to the network namespace of the socket, or an error
		return c.connectAgain()
	}
	return c.connectPath(path)
}

// connectAgain connects a Unix socket to the address or the file that was judged.
func (c *call) connectAgain() unix.Errno {
	address := c.address
	if c.file > 0 {
		address = c.t.addressOf(c.file)
	}
	return c.t.withIdentity(c.caller.identity, func() unix.Errno { return c.connectTo(address) })
}

// readArguments copies the socket and the address from the caller. Later changes to either have no effect.
func (c *call) readArguments() unix.Errno {
	var err error
	if c.process, err = unix.PidfdOpen(int(c.thread), pidfdThread); err != nil {
		if c.process, err = c.openProcess(); err != nil {
			c.process = 0
			return errnoOf(err) // EMFILE; if the caller is gone, the kernel drops the answer
		}
	}
	length := int32(c.args[2])
	var copied unix.Errno
	if length >= 0 && length <= maxAddress {
		c.address = make([]byte, length)
		copied = c.copyAddress()
	}
	c.socket, err = unix.PidfdGetfd(c.process, int(int32(c.args[0])), 0)
	if !c.isWaiting() {
		return unix.EINTR // the caller is gone, and its ID may have been reused: the kernel drops the answer
	}
	switch {
	case err != nil:
		c.socket = 0
		return errnoOf(err) // EBADF
	case length < 0 || length > maxAddress:
		return unix.EINVAL
	}
	return copied
}

// pidfdThread is PIDFD_THREAD, since Linux 6.9.
const pidfdThread = unix.O_EXCL

// openProcess opens the process of a thread. It shares the thread's descriptors, unless the thread has unshared them.
func (c *call) openProcess() (int, error) {
	if err := c.readStatus(); err != nil {
		return 0, err
	}
	return unix.PidfdOpen(c.caller.process, 0)
}

func (c *call) copyAddress() unix.Errno {
	if len(c.address) == 0 {
		return 0
	}
	local := []unix.Iovec{{Base: &c.address[0], Len: uint64(len(c.address))}}
	remote := []unix.RemoteIovec{{Base: uintptr(c.args[1]), Len: len(c.address)}}
	if n, err := unix.ProcessVMReadv(int(c.thread), local, remote, 0); err != nil || n < len(c.address) {
		return unix.EFAULT
	}
	return 0
}

// isWaiting reports whether the caller still waits for the answer, so that its ID cannot have been reused.
func (c *call) isWaiting() bool {
	return ioctl(c.s.listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&c.id)) == nil
}

// path returns the path in the address of a Unix socket; false if the kernel would not look up a path.
func (c *call) path() (string, bool) {
	const family = 2 // bytes before the path
	if len(c.address) <= family || uint16(c.address[0])|uint16(c.address[1])<<8 != unix.AF_UNIX || c.address[family] == 0 {
		return "", false
	}
	path, _, _ := bytes.Cut(c.address[family:], []byte{0})
	return string(path), len(c.address) <= unix.SizeofSockaddrUnix
}

// connectPath connects the command's socket to a file, if that is a socket that the command may reach.
func (c *call) connectPath(path string) unix.Errno {
	file, errno := c.open(path)
	if errno != 0 {
		return errno
	}
	c.file = file
	at, kind, err := stat(file)
	if err != nil {
		return errnoOf(err)
	}
	if kind == unix.S_IFSOCK && !c.mayReach(at) {
		c.s.reportRefused(c.t.nameOf(file))
		return unix.EACCES // with ECONNREFUSED, ssh would take the socket for a stale one and remove it
	}
	return c.connectAgain()
}

// open opens a file with the caller's rights.
func (c *call) open(path string) (file int, errno unix.Errno) {
	root, err := open(c.dir, "root", unix.O_DIRECTORY)
	if err != nil {
		return 0, errnoOf(err)
	}
	defer unix.Close(root)
	from, path := c.lookupStart(path)
	dir := root // for absolute paths; the caller's own directory may be accessible only to its user (FUSE)
	if !strings.HasPrefix(path, "/") {
		if dir, err = open(c.s.proc, from, unix.O_DIRECTORY); err != nil {
			return 0, errnoOf(err)
		}
		defer unix.Close(dir)
	}
	if !c.isWaiting() {
		return 0, unix.EINTR
	}
	if err := c.t.setRoot(root, dir); err != nil {
		return 0, errnoOf(err)
	}
	errno = c.t.withIdentity(c.caller.identity, func() unix.Errno {
		file, err = c.lookUp(path)
		return errnoOf(err)
	})
	if err := c.t.resetRoot(); err != nil && errno == 0 {
		_ = unix.Close(file)
		return 0, errnoOf(err)
	}
	return file, errno
}

// lookupStart returns the directory below /proc where the lookup of a path starts, and the path from there. It replaces links to the
// caller's own directory, because they do not work for the supervisor in a /proc of a PID namespace that the command has
// made.
func (c *call) lookupStart(path string) (dir, rest string) {
	thread, process := strconv.Itoa(int(c.thread)), strconv.Itoa(c.caller.process)
	for _, own := range [][2]string{{"/proc/self/", process}, {"/proc/thread-self/", thread}, {"/dev/fd/", process + "/fd"}} {
		if rest, ok := strings.CutPrefix(path, own[0]); ok && rest != "" {
			return own[1], strings.TrimLeft(rest, "/")
		}
	}
	return thread + "/cwd", path
}

func (c *call) close() {
	c.closeSocket()
	c.closeProcess()
	if c.file > 0 {
		_ = unix.Close(c.file)
		c.file = 0
	}
}

// closeProcess closes the descriptors that a pending connection does not need.
func (c *call) closeProcess() {
	for _, fd := range []*int{&c.process, &c.dir} {
		if *fd > 0 {
			_ = unix.Close(*fd)
			*fd = 0
		}
	}
}

func (c *call) closeSocket() {
	if c.socket > 0 {
		_ = unix.Close(c.socket)
		c.socket = 0
	}
}

// procDir opens the caller's directory in /proc.
func (c *call) procDir() (err error) {
	if c.dir == 0 {
		c.dir, err = open(c.s.proc, strconv.Itoa(int(c.thread)), unix.O_DIRECTORY)
	}
	return err
}

func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := err.(unix.Errno); ok { // errors of system calls
		return errno
	}
	return unix.EACCES
}
