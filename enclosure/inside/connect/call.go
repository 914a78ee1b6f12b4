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
	_      int32  // number of the system call: connect is the only one that the filter notifies of
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

// ioctl calls ioctl(2). The pointer becomes a number in the very call: the stack, where it may point to, can move before that.
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
		n := notification{} // which the kernel wants zeroed
		err := ioctl(s.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if err != unix.ENOENT { // the caller was killed in between
			return n, err
		}
	}
}

// call is one call of connect(2). Its fields are those of whoever works on it: a thread, or a goroutine that waits.
type call struct {
	notification
	s       *Supervisor
	t       *thread
	process int // PIDFD of the thread or its process; 0: not open
	dir     int // its directory in /proc; 0: not open
	socket  int // the command's socket; 0: not open
	file    int // that a Unix socket is connected to, once it was judged; 0: none
	cookie  uint64
	family  int
	address []byte // to connect to
	caller  status // of a caller that connects a Unix socket
	tried   bool   // the socket may have been connected
	noted   bool   // that was done by an earlier call, whose answer this one gets
	waited  wait   // while the connection is under way

	before *call         // of the same thread, which has not ended; with mu
	turn   chan struct{} // closed when a thread works on it
	gone   chan struct{} // closed when the thread of the command has made another call
	ended  bool          // with mu
	group  int           // process of the thread; with mu; 0: not looked up, -1: unknown
}

// maxAddress is the size of struct sockaddr_storage.
const maxAddress = 128

// underWay says that a connection is neither made nor refused yet, and that the caller waits for that. The kernel returns no such number.
const underWay = unix.Errno(4096)

// connect performs the call, and returns its error for the command; 0 on success.
func (c *call) connect() unix.Errno {
	if c.socket > 0 { // it was under way
		return c.connectAgain()
	}
	if errno := c.read(); errno != 0 {
		return errno
	}
	var err error
	if c.family, err = unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return errnoOf(err) // ENOTSOCK
	}
	if c.cookie, err = unix.GetsockoptUint64(c.socket, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return errnoOf(err)
	}
	if errno, ok := c.s.kept(c.thread, c.cookie, c.address); ok {
		c.tried, c.noted = true, true
		return errno
	}
	if c.family != unix.AF_UNIX {
		return c.t.without(func() unix.Errno { return c.connectTo(c.address) })
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
	return c.t.as(c.caller.identity, func() unix.Errno { return c.connectTo(address) })
}

// read takes the socket and the address from the caller. Later changes to either have no effect.
func (c *call) read() unix.Errno {
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
	if !c.waits() {
		return unix.EINTR // the caller is gone, and its ID may be another thread's by now: the kernel drops the answer
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

// openProcess opens the process of a thread. Its descriptors are the thread's unless that has unshared them.
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

// waits reports whether the caller still waits for the answer, so that its ID is not another thread's.
func (c *call) waits() bool {
	return ioctl(c.s.listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&c.id)) == nil
}

// path returns the path that the address has for a Unix socket, if the kernel would look one up.
func (c *call) path() (string, bool) {
	const family = 2 // bytes before the path
	if len(c.address) <= family || uint16(c.address[0])|uint16(c.address[1])<<8 != unix.AF_UNIX || c.address[family] == 0 {
		return "", false
	}
	path, _, _ := bytes.Cut(c.address[family:], []byte{0})
	return string(path), len(c.address) <= unix.SizeofSockaddrUnix
}

// connectPath connects the command's socket to a file, if it is a socket that the command may reach.
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
		c.s.refuse(c.t.nameOf(file))
		return unix.EACCES // ECONNREFUSED would have ssh take the socket for a stale one, and remove it
	}
	return c.connectAgain()
}

// open opens a file as the caller would.
func (c *call) open(path string) (file int, errno unix.Errno) {
	root, err := open(c.dir, "root", unix.O_DIRECTORY)
	if err != nil {
		return 0, errnoOf(err)
	}
	defer unix.Close(root)
	from, path := c.begin(path)
	dir := root // where an absolute path begins; the caller's own directory may let in its user alone (FUSE)
	if !strings.HasPrefix(path, "/") {
		if dir, err = open(c.s.proc, from, unix.O_DIRECTORY); err != nil {
			return 0, errnoOf(err)
		}
		defer unix.Close(dir)
	}
	if !c.waits() {
		return 0, unix.EINTR
	}
	if err := c.t.move(root, dir); err != nil {
		return 0, errnoOf(err)
	}
	errno = c.t.as(c.caller.identity, func() unix.Errno {
		file, err = c.lookUp(path)
		return errnoOf(err)
	})
	if err := c.t.leave(); err != nil && errno == 0 {
		_ = unix.Close(file)
		return 0, errnoOf(err)
	}
	return file, errno
}

// begin returns the directory that a path is looked up from, below /proc, and the path from there: in a /proc of a PID namespace that the
// command has made, the links to the caller's own directory lead the supervisor nowhere.
func (c *call) begin(path string) (dir, rest string) {
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

// closeProcess closes what is only needed until the connection is under way.
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
	if errno, ok := err.(unix.Errno); ok { //nolint:errorlint // as system calls return them
		return errno
	}
	return unix.EACCES
}
