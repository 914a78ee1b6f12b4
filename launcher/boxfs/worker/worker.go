package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Name is the name under which a program is started as a worker. Two arguments follow: the IDs of the user and the group to
// become. Descriptor 3 is the root of the box.
const Name = "boxgate-files"

const rootFD = 3

// init runs the worker, if this process is one, before the rest of the program is initialized, so that the start is fast.
func init() {
	if len(os.Args) == 3 && os.Args[0] == Name {
		os.Exit(run())
	}
}

func run() int {
	uid, uerr := strconv.Atoi(os.Args[1])
	gid, gerr := strconv.Atoi(os.Args[2])
	if err := errors.Join(uerr, gerr); err != nil || uid <= 0 || gid <= 0 {
		fmt.Fprintln(os.Stderr, "no user to become:", err)
		return 2
	}
	if err := enterBox(uid, gid); err != nil {
		fmt.Fprintln(os.Stderr, "cannot enter the box:", err)
		return 1
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// enterBox gives up everything of the host except the streams: root directory, user, groups and capabilities. The order
// matters, because each step needs privileges that a later one drops.
func enterBox(uid, gid int) error {
	if err := closeInherited(); err != nil {
		return err
	}
	for resource, most := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 256} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
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
	in  *bufio.Reader
	out io.Writer
}

// handle serves a request.
func (s *server) handle(req Request) error {
	path := string(req.Path)
	switch req.Op {
	case OpRead:
		return s.read(path, req.Offset, req.Length)
	case OpWrite:
		return s.handleContent(func(content io.Reader) error { return write(path, os.FileMode(req.Mode), content) })
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
