package worker

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Name is the name under which a program is started as a worker. Three arguments follow: the IDs of the user and the group to
// become, and the home directory. Descriptor 3 is the root of the box.
const Name = "boxgate-files"

// InsideName is the name under which a program is started as a worker that is in the box already, with the same arguments as for [Name], but
// with IDs of the box, and with the credentials that it keeps. The user may be the box's root.
const InsideName = "boxgate-files-inside"

const rootFD = 3

// arguments is the number of arguments of a worker, with its name.
const arguments = 4

// init runs the worker, if this process is one, before the rest of the program is initialized, so that the start is fast.
func init() {
	switch {
	case len(os.Args) != arguments:
	case os.Args[0] == Name:
		os.Exit(run(Confine))
	case os.Args[0] == InsideName:
		os.Exit(run(confirm))
	}
}

func run(confine func() error) int {
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot enter the box:", err)
		return 1
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Confine confines this process to the box that its arguments and descriptor 3 name, as described for [Name]. After an error it must
// end. Call it first.
func Confine() error {
	if len(os.Args) != arguments {
		return errors.New("no user to become")
	}
	uid, gid, err := ids()
	if err != nil || uid <= 0 || gid <= 0 {
		return fmt.Errorf("no user to become: %w", err)
	}
	home = os.Args[3]
	return enterBox(uid, gid)
}

// confirm checks that this process has the user of its arguments and is confined by a filter for system calls, which is the last step of
// entering a box, and limits it further. Only root of the box has capabilities.
func confirm() error {
	uid, gid, err := ids()
	if err != nil {
		return err
	}
	home = os.Args[3]
	if os.Getuid() != uid || os.Geteuid() != uid || os.Getgid() != gid || os.Getegid() != gid {
		return errors.New("the process has another user")
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil || mode != unix.SECCOMP_MODE_FILTER {
		return fmt.Errorf("system calls are not filtered: mode %d, %w", mode, err)
	}
	if err := limit(); err != nil {
		return err
	}
	syscall.Umask(0o022)
	if uid == 0 {
		return nil
	}
	return checkNoCapabilities()
}

// ids returns the IDs in the arguments.
func ids() (uid, gid int, err error) {
	uid, uerr := strconv.Atoi(os.Args[1])
	gid, gerr := strconv.Atoi(os.Args[2])
	return uid, gid, errors.Join(uerr, gerr)
}

// limit sets the limits of a worker. It needs few descriptors.
func limit() error {
	for resource, most := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 256} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

// enterBox gives up everything of the host except the streams: root directory, user, groups and capabilities. The order
// matters, because each step needs privileges that a later one drops.
func enterBox(uid, gid int) error {
	if err := closeInherited(); err != nil {
		return err
	}
	if err := limit(); err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil { // package syscall applies it to every thread
		return err
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return err
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return err
	}
	syscall.Umask(0o022)
	return checkNoCapabilities()
}

// closeInherited closes inherited descriptors that the gateway itself was started with. The Go runtime's descriptors are
// marked close-on-exec; inherited ones are not.
func closeInherited() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= rootFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// enterRoot makes the box's root the root of this process.
func enterRoot() error {
	if err := unix.Fchdir(rootFD); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Close(rootFD)
}

// checkNoCapabilities fails if a capability is left.
func checkNoCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	if caps[0].Effective|caps[0].Permitted|caps[1].Effective|caps[1].Permitted != 0 {
		return errors.New("capabilities are left")
	}
	return nil
}

// serve answers requests until the input ends. It returns errors of the streams; errors of files are sent as answers.
func serve(in io.Reader, out io.Writer) error {
	s := server{in: bufio.NewReaderSize(in, 64<<10), out: out}
	s.file, _ = in.(*os.File)
	for {
		var req Request
		err := Receive(s.in, &req)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.handle(req)
		}
		if err != nil {
			return err
		}
	}
}

type server struct {
	file *os.File // in, if it is one
	in   *bufio.Reader
	out  io.Writer
}

// handle serves a request.
func (s *server) handle(req Request) error {
	path := string(req.Path)
	switch req.Op {
	case OpRead:
		return s.read(path, req.Offset, req.Length)
	case OpWrite:
		return s.handleContent(func(content io.Reader) error { return write(path, os.FileMode(req.Mode), req.Own, content) })
	case OpPack:
		return s.pack(path)
	case OpUnpack:
		return s.handleContent(func(content io.Reader) error { return unpack(path, content) })
	case OpStat:
		return s.answer(stat(path, req.Follow))
	case OpList:
		return s.answer(list(path, req.Most))
	case OpMakeDir:
		return s.answer(Answer{}, makeDir(path, req.Parents))
	case OpRename:
		return s.answer(Answer{}, unix.Rename(path, string(req.To)))
	case OpRemove:
		return s.answer(Answer{}, remove(path, req.Recursive))
	case OpAttributes:
		return s.answer(Answer{}, setAttributes(path, req.Attributes, req.Drop))
	case OpWatch:
		return s.watch(req)
	case OpRenew:
		return s.answer(Answer{}, renew(req.CA, req.Roots))
	}
	return fmt.Errorf("operation %q is unknown", req.Op)
}

func (s *server) answer(a Answer, err error) error {
	a.Failure = Failed(err)
	return Send(s.out, a)
}

// handleContent serves a request with content. If f fails before it has read all content, the process ends after the answer, so that
// the rest is not sent in vain.
func (s *server) handleContent(f func(io.Reader) error) error {
	content := &ContentReader{R: s.in}
	err := f(content)
	if err == nil {
		_, err = io.Copy(io.Discard, content) // padding of an archive
	}
	if sent := s.answer(Answer{}, err); sent != nil || content.done {
		return sent
	}
	return err
}

// The operations.
const (
	OpStat       = "stat"
	OpList       = "list"
	OpRead       = "read"  // answers with an Info, then content
	OpWrite      = "write" // content follows the request
	OpMakeDir    = "mkdir"
	OpRename     = "rename"
	OpRemove     = "remove"
	OpPack       = "pack"       // answers, then a tar archive as content, then an Answer with the number of skipped files
	OpUnpack     = "unpack"     // a tar archive follows the request as content
	OpWatch      = "watch"      // the last request: answers when the watch is in place, then with Events until the input or the watch ends
	OpAttributes = "attributes" // sets and drops attributes
	OpRenew      = "renew"      // adds Roots to the certificates of the box; the worker must be the box's root
)

// Request is one operation. Paths are bytes, because file names need not be UTF-8, and absolute.
type Request struct {
	Op         string
	Path       []byte
	To         []byte            `json:",omitempty"` // of OpRename
	Follow     bool              `json:",omitempty"` // of OpStat: follow a symbolic link
	Parents    bool              `json:",omitempty"` // of OpMakeDir
	Recursive  bool              `json:",omitempty"` // of OpRemove and OpWatch
	Entries    bool              `json:",omitempty"` // of OpWatch: events have an Info
	Mode       uint32            `json:",omitempty"` // of OpWrite: permissions of a new file; 0: 0644
	Own        bool              `json:",omitempty"` // of OpWrite: a file of another owner becomes the user's
	Most       int               `json:",omitempty"` // of OpList: maximum number of entries
	Offset     int64             `json:",omitempty"` // of OpRead
	Length     int64             `json:",omitempty"` // of OpRead: maximum number of bytes
	Attributes map[string]string `json:",omitempty"` // of OpAttributes: to be set
	Drop       []string          `json:",omitempty"` // of OpAttributes: names of attributes to be removed
	CA         []byte            `json:",omitempty"` // of OpRenew: the CA of the box, in PEM
	Roots      []byte            `json:",omitempty"` // of OpRenew: PEM
}

// Answer is the result of a request.
type Answer struct {
	Failure   *Failure `json:",omitempty"`
	Info      *Info    `json:",omitempty"`
	Entries   []Info   `json:",omitempty"`
	Truncated bool     `json:",omitempty"` // the directory has more entries
	Skipped   int      `json:",omitempty"` // files that OpPack could not read
	Events    []Event  `json:",omitempty"` // of OpWatch
}

// Info describes a file. In a list, a link has the size and the directory bit of its target.
type Info struct {
	Name  []byte
	Type  string // file, directory, symlink or other
	IsDir bool
	Size  int64
	Mode  uint32 // permissions
	Time  int64  // of the last modification, in ns since 1970
	Inode uint64

	UID        uint32 // in the box
	GID        uint32
	Owner      string // the name of UID in the box, otherwise its digits
	Group      string
	Target     []byte            `json:",omitempty"` // of a symbolic link
	Attributes map[string]string `json:",omitempty"` // user-defined, bounded
}

// Failure is an error that is sent to the other process.
type Failure struct {
	Errno   syscall.Errno // 0: unknown
	Message string
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Unwrap returns the error number, so that errors.Is finds it.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// Failed converts an error to a Failure. It drops the path, which the caller knows.
func Failed(err error) *Failure {
	var f *Failure
	if err == nil || errors.As(err, &f) {
		return f
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		return &Failure{Errno: no, Message: no.Error()}
	}
	for known, no := range map[error]syscall.Errno{fs.ErrNotExist: syscall.ENOENT, fs.ErrExist: syscall.EEXIST, fs.ErrPermission: syscall.EACCES} {
		if errors.Is(err, known) {
			return &Failure{Errno: no, Message: no.Error()}
		}
	}
	return &Failure{Message: err.Error()}
}

// A message is a length of four bytes and JSON. Content is a sequence of chunks, each preceded by its length, and ends with
// a chunk of length 0; without it the content is incomplete.
const (
	// MaxChunk is the maximum size of a chunk of content.
	MaxChunk = 128 << 10
	// maxMessage bounds a request and an answer. The longest list of files fits.
	maxMessage = 64 << 20
)

// Send writes a message.
func Send(w io.Writer, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(data))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// Receive reads a message.
func Receive(r io.Reader, message any) error {
	n, err := readLength(r, maxMessage)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(data) < n {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(data, message)
}

func readLength(r io.Reader, most int) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > uint32(most) {
		return 0, fmt.Errorf("a length of %d is too long", n)
	}
	return int(n), nil
}

// ContentWriter sends content. Close sends the end marker, without which the content is incomplete.
type ContentWriter struct {
	W   io.Writer
	buf []byte
}

// Write sends chunks.
func (c *ContentWriter) Write(b []byte) (int, error) {
	done := 0
	for len(b) > 0 {
		n := min(len(b), MaxChunk)
		c.buf = append(binary.BigEndian.AppendUint32(c.buf[:0], uint32(n)), b[:n]...)
		if _, err := c.W.Write(c.buf); err != nil {
			return done, err
		}
		done += n
		b = b[n:]
	}
	return done, nil
}

// Close sends the end marker.
func (c *ContentWriter) Close() error {
	_, err := c.W.Write(make([]byte, 4))
	return err
}

// ContentReader receives content. It returns io.EOF only after the end marker.
type ContentReader struct {
	R    io.Reader
	left int
	done bool
}

// Read reads content.
func (c *ContentReader) Read(b []byte) (int, error) {
	if c.done {
		return 0, io.EOF
	}
	if c.left == 0 {
		n, err := readLength(c.R, MaxChunk)
		if err != nil {
			return 0, cut(err)
		}
		if c.left = n; n == 0 {
			c.done = true
			return 0, io.EOF
		}
	}
	n, err := c.R.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, cut(err)
}

func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
