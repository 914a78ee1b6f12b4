// Package boxfs works on the files of a box, confined to the box's root and with its user's rights. The gateway never opens
// a path of a box itself: each [Session] has its own process (see package worker), which the box can neither see nor trick
// into opening files of the host, and which can be killed even if it blocks on a file.
package boxfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs/worker"
	"boxgate/policy"
)

// Config configures a session.
type Config struct {
	Root     *os.File // the root of the box; the session does not close it
	UID, GID int      // of the box's user, on the host; never 0
	Home     string   // the home directory of the box's user; empty: [worker.Home]
	// Join puts a process into the control groups of the box. It is called before the process does any work.
	Join func(pid int) error
	// Enter, if not nil, starts the process instead, with the credentials that a command of the user has in the box, root's capabilities
	// included. UID and GID are then those in the box, and may be 0; Root and Join are not used. The program is this one, with these
	// arguments and exactly these variables.
	Enter func(ctx context.Context, args, env []string, streams [3]*os.File) (Process, error)
}

// Process is a running process of a session.
type Process interface {
	Pid() int
	// Kill kills it, unless it has ended.
	Kill()
	// Wait waits for its end. It is called once.
	Wait()
}

// child is a [Process] that this one has started.
type child struct{ cmd *exec.Cmd }

func (c child) Pid() int { return c.cmd.Process.Pid }
func (c child) Kill()    { _ = c.cmd.Process.Kill() }
func (c child) Wait()    { _ = c.cmd.Wait() } // its exit status no longer matters

// Session works on the files of one box, one call at a time. It ends with its context. The caller must call Close.
//
// A call fails with a *[worker.Failure] if the file is the reason. Any other error, also of a content reader, ends the
// session.
type Session struct {
	ctx    context.Context
	proc   Process
	in     *os.File // our end of the worker's standard input
	out    *os.File
	stderr *head
	stop   func() bool
	close  func()
	ended  chan struct{}

	closeTimeout time.Duration // defaultCloseTimeout, except in tests
}

// defaultCloseTimeout is how long a worker may take to clean up after an interrupted request.
const defaultCloseTimeout = 5 * time.Second

// Open starts a session.
func Open(ctx context.Context, cfg Config) (*Session, error) { return openAs(ctx, cfg, worker.Name) }

// openAs starts a session of a kind of process.
func openAs(ctx context.Context, cfg Config, program string) (*Session, error) {
	s := &Session{ctx: ctx, stderr: &head{}, ended: make(chan struct{}), closeTimeout: defaultCloseTimeout}
	s.close = sync.OnceFunc(s.shutDown)
	if err := s.start(cfg, program); err != nil {
		return nil, fmt.Errorf("the process that works on the box's files cannot be started: %w", err)
	}
	s.stop = context.AfterFunc(ctx, s.hangUp)
	if cfg.Enter != nil {
		return s, nil
	}
	if err := cfg.Join(s.proc.Pid()); err != nil {
		s.Close()
		return nil, fmt.Errorf("the process that works on the box's files cannot join its control groups: %w", err)
	}
	return s, nil
}

// start starts the worker, which waits for its first request.
func (s *Session) start(cfg Config, program string) error {
	itsIn, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer itsIn.Close()
	out, itsOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return err
	}
	defer itsOut.Close()
	s.in, s.out = in, out
	if cfg.Enter != nil {
		program = worker.InsideName
	}
	args := []string{program, strconv.Itoa(cfg.UID), strconv.Itoa(cfg.GID), cmp.Or(cfg.Home, worker.Home)}
	// The Go runtime must not look at the control groups of the host, which takes descriptors.
	env := []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOTRACEBACK=none"}
	if cfg.Enter != nil {
		err = s.enter(cfg, args, env, itsIn, itsOut)
	} else {
		cmd := &exec.Cmd{
			Path: "/proc/self/exe", Args: args, Env: env, Dir: "/",
			Stdin: itsIn, Stdout: itsOut, Stderr: s.stderr, ExtraFiles: []*os.File{cfg.Root},
		}
		s.proc, err = child{cmd}, cmd.Start()
	}
	if err != nil {
		s.hangUp()
	}
	return err
}

// enter starts the worker in the box.
func (s *Session) enter(cfg Config, args, env []string, itsIn, itsOut *os.File) error {
	text, itsErrors, err := os.Pipe()
	if err != nil {
		return err
	}
	defer itsErrors.Close()
	if s.proc, err = cfg.Enter(s.ctx, args, env, [3]*os.File{itsIn, itsOut, itsErrors}); err != nil {
		text.Close()
		return err
	}
	go func() { // until the process has ended
		defer text.Close()
		_, _ = io.Copy(s.stderr, text)
	}()
	return nil
}

// hangUp closes the streams, which makes the worker end.
func (s *Session) hangUp() {
	s.in.Close()
	s.out.Close()
}

// Close ends the session and waits for the end of its process. It does not wait for a frozen process, which ends when the
// box is thawed; Ended is closed then.
func (s *Session) Close() { s.close() }

// Ended returns a channel that is closed when the session's process has ended, after Close.
func (s *Session) Ended() <-chan struct{} { return s.ended }

func (s *Session) shutDown() {
	if s.stop != nil {
		s.stop()
	}
	s.hangUp()
	go func() {
		defer close(s.ended)
		s.proc.Wait()
	}()
	for _, step := range []func(){s.proc.Kill, func() {}} {
		select {
		case <-s.ended:
			return
		case <-time.After(s.closeTimeout):
			step()
		}
	}
}

// Pid returns the ID of the session's process.
func (s *Session) Pid() int { return s.proc.Pid() }

// Do makes one call without content.
func (s *Session) Do(req worker.Request) (worker.Answer, error) {
	if err := worker.Send(s.in, req); err != nil {
		return worker.Answer{}, s.broken(err)
	}
	return s.answer()
}

// Read returns up to length bytes of a file from an offset on. The next call must wait until the reader has returned
// io.EOF; any other error means that the content is incomplete.
func (s *Session) Read(path string, offset, length int64) (worker.Info, io.Reader, error) {
	a, err := s.Do(worker.Request{Op: worker.OpRead, Path: []byte(path), Offset: offset, Length: length})
	if err != nil {
		return worker.Info{}, nil, err
	}
	if a.Info == nil {
		return worker.Info{}, nil, s.broken(errors.New("the answer is not complete"))
	}
	return *a.Info, &worker.ContentReader{R: s.out}, nil
}

// Pack returns a directory as a tar archive. After the reader has returned io.EOF, Skipped returns how many files are
// missing in it.
func (s *Session) Pack(path string) (io.Reader, error) {
	if _, err := s.Do(worker.Request{Op: worker.OpPack, Path: []byte(path)}); err != nil {
		return nil, err
	}
	return &worker.ContentReader{R: s.out}, nil
}

// Skipped returns how many files [Session.Pack] had to leave out.
func (s *Session) Skipped() (int, error) {
	a, err := s.answer()
	return a.Skipped, err
}

// Send makes a call with content after the request. If reading the content fails, Send returns that error and no file is
// changed.
func (s *Session) Send(req worker.Request, content io.Reader) error {
	if err := worker.Send(s.in, req); err != nil {
		return s.broken(err)
	}
	w := &worker.ContentWriter{W: s.in}
	from := &source{r: content}
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, from, make([]byte, worker.MaxChunk))
	if from.err != nil {
		s.hangUp()
		return from.err
	}
	if err == nil {
		err = w.Close()
	}
	_, failed := s.answer() // a worker that stopped reading has sent the reason
	if err != nil && failed == nil {
		return s.broken(err)
	}
	return failed
}

// source distinguishes errors of the reader from errors of the writer.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func (s *Session) answer() (worker.Answer, error) {
	var a worker.Answer
	if err := worker.Receive(s.out, &a); err != nil {
		return worker.Answer{}, s.broken(err)
	}
	if a.Failure != nil {
		return worker.Answer{}, a.Failure
	}
	return a, nil
}

// broken returns why the session cannot continue.
func (s *Session) broken(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.Close()
	return fmt.Errorf("the process that works on the box's files ended: %w: %s", err, s.stderr)
}

// head keeps the beginning of a worker's standard error.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (t *head) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), 1000-len(t.text))]...)
	return len(b), nil
}

func (t *head) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.text), "?")
}

// PerBox is the maximum number of concurrent sessions of a box.
const PerBox = 8

// Limiter limits the sessions of each box. The zero value is ready to use.
type Limiter struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxSessions // guarded by mu
}

type boxSessions struct {
	free  chan struct{} // a token for each running session
	users int           // holders and waiters
}

// Acquire waits for a free session. The caller must call done.
func (t *Limiter) Acquire(ctx context.Context, id policy.BoxID) (done func(), err error) {
	b := t.enter(id)
	select {
	case b.free <- struct{}{}:
		return sync.OnceFunc(func() { <-b.free; t.release(id, b) }), nil
	case <-ctx.Done():
		t.release(id, b)
		return nil, context.Cause(ctx)
	}
}

// TryAcquire is Acquire without waiting. It returns false if no session is free.
func (t *Limiter) TryAcquire(id policy.BoxID) (done func(), ok bool) {
	b := t.enter(id)
	select {
	case b.free <- struct{}{}:
		return sync.OnceFunc(func() { <-b.free; t.release(id, b) }), true
	default:
		t.release(id, b)
		return nil, false
	}
}

// enter counts a holder or waiter.
func (t *Limiter) enter(id policy.BoxID) *boxSessions {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.boxes == nil {
		t.boxes = map[policy.BoxID]*boxSessions{}
	}
	b := t.boxes[id]
	if b == nil {
		b = &boxSessions{free: make(chan struct{}, PerBox)}
		t.boxes[id] = b
	}
	b.users++
	return b
}

func (t *Limiter) release(id policy.BoxID, b *boxSessions) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(t.boxes, id)
	}
}

// OpenRoot opens the root of a process, if the process is in the pinned user namespace: its ID may have been reused by
// another process. marker is a file that the root of every box has; it is missing with runtimes that keep boxes outside the
// host's file system.
func OpenRoot(pid int, userPin, marker string) (*os.File, error) {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	if err := checkUserNamespace(process, userPin); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(process.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	root := os.NewFile(uintptr(fd), "root of a box")
	at, err := unix.Openat2(fd, marker, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		root.Close()
		return nil, ErrElsewhere
	}
	unix.Close(at)
	return root, nil
}

// InUserNamespace reports whether a process is in the pinned user namespace.
func InUserNamespace(pid int, userPin string) bool {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer process.Close()
	return checkUserNamespace(process, userPin) == nil
}

// checkUserNamespace returns an error unless a process, given by its directory in /proc, is in the pinned user namespace.
func checkUserNamespace(process *os.File, userPin string) error {
	var ours, pinned unix.Stat_t
	if err := errors.Join(unix.Fstatat(int(process.Fd()), "ns/user", &ours, 0), unix.Stat(userPin, &pinned)); err != nil {
		return err
	}
	if ours.Ino != pinned.Ino || ours.Dev != pinned.Dev {
		return os.ErrNotExist
	}
	return nil
}

// ErrElsewhere is returned for boxes whose files are invisible to the host.
var ErrElsewhere = errors.New("the files of this box are not in a file system of the host")

// IsFileOrMissing reports whether a path in the root of a box is a regular file or does not exist. It opens the path only
// with O_PATH.
func IsFileOrMissing(root *os.File, name string) bool {
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}
