package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Streams are the three standard streams of a command: pipes, or /dev/null where the caller does not need them. The runtime
// passes the far ends to the command; they belong to the command's user, so that it can open /dev/stdout.
type Streams struct {
	far [3]*os.File // the command's ends
	in  *os.File    // our end of standard input, or nil
	out [2]*os.File // our ends of standard output and error, or nil
	tty *os.File    // the master side of the terminal that replaces all three, or nil
}

// Stdio are the caller's ends of the three streams. nil: standard input is empty, output is discarded.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Open opens the streams for a command; owner is the command's user on the host.
func Open(ends Stdio, owner int) (_ *Streams, err error) {
	s := &Streams{}
	defer func() {
		if err != nil {
			s.CloseAll()
		}
	}()
	if ends.In != nil {
		if s.far[0], s.in, err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	for i, w := range []io.Writer{ends.Out, ends.Err} {
		if w == nil {
			continue
		}
		if s.out[i], s.far[i+1], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	for i, f := range s.far {
		if f == nil {
			if s.far[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
				return nil, err
			}
		} else if err = f.Chown(owner, owner); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// OpenForTerminal opens only /dev/null: the streams of the command are a terminal, which [Streams.Attach] adds.
func OpenForTerminal() (*Streams, error) { return Open(Stdio{}, 0) }

// Attach makes the master side of a terminal our end of standard input and output.
func (s *Streams) Attach(master *os.File) { s.in, s.out[0], s.tty = master, master, master }

// Connect makes the far ends the streams of a command to be started.
func (s *Streams) Connect(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.far[0], s.far[1], s.far[2]
}

// Far returns the far ends, for a command that is not started with [Streams.Connect].
func (s *Streams) Far() [3]*os.File { return s.far }

// CloseFar closes the far ends.
func (s *Streams) CloseFar() {
	for _, f := range s.far {
		if f != nil {
			f.Close() // closing again is harmless
		}
	}
}

// CloseAll closes everything, for a command that did not start.
func (s *Streams) CloseAll() {
	s.CloseFar()
	for _, f := range []*os.File{s.in, s.out[0], s.out[1]} {
		if f != nil {
			f.Close()
		}
	}
}

// Pump copies data between the caller's streams and the command's. finish must be called when the command has ended; it
// returns when all output of the command has been copied, and passes the streams that are still open to leave. waste is
// called with the number of bytes to discard after a writer has failed, and may block.
func (s *Streams) Pump(ends Stdio, leave func(*os.File), waste func(n int)) (finish func()) {
	if s.in != nil && ends.In != nil {
		go func() {
			_, _ = io.Copy(onlyWriter{s.in}, ends.In)
			s.endInput()
		}()
	}
	var copies sync.WaitGroup
	var left [2]bool // whether the stream was still open when the copy ended
	for i, w := range []io.Writer{ends.Out, ends.Err} {
		if s.out[i] != nil {
			copies.Go(func() { left[i] = copyOutput(w, s.out[i], waste) })
		}
	}
	return func() {
		s.stopInput()
		for _, r := range s.out {
			if r != nil {
				_ = r.SetReadDeadline(time.Now()) // the pipe contains the rest of the command's output
			}
		}
		copies.Wait()
		for i, r := range s.out {
			switch {
			case r == nil:
			case left[i] && s.tty == nil:
				leave(r)
			default:
				r.Close()
			}
		}
	}
}

// endOfInput is the character that ends the input of a program that reads lines.
const endOfInput = 0x04

// endInput signals the end of input to the command. A terminal stays open for output.
func (s *Streams) endInput() {
	if s.tty != nil {
		_, _ = s.tty.Write([]byte{endOfInput})
		return
	}
	s.in.Close()
}

// stopInput interrupts a write of input that the command does not read.
func (s *Streams) stopInput() {
	switch {
	case s.tty != nil:
		_ = s.tty.SetWriteDeadline(time.Now())
	case s.in != nil:
		s.in.Close()
	}
}

// copyOutput copies a stream to a writer until the stream ends (false) or its deadline expires, and then the remaining content
// of the pipe. A writer that fails does not stop the command: the rest is discarded at the rate that waste allows.
func copyOutput(w io.Writer, r *os.File, waste func(n int)) (open bool) {
	sink := &stickyWriter{w: w, waitDiscard: waste}
	if _, err := io.Copy(sink, onlyReader{r}); !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	for left := pipeSize(r); left > 0; { // no more than that, or a background process could keep this going
		buf := make([]byte, min(left, 32<<10))
		n, open := readNow(r, buf)
		if n <= 0 {
			return open
		}
		if !sink.failed {
			_, _ = sink.Write(buf[:n])
		}
		left -= n
	}
	return true
}

// readNow reads from a pipe without waiting. n == 0 means that it is empty (open) or has ended (not open).
func readNow(r *os.File, buf []byte) (n int, open bool) {
	raw, err := r.SyscallConn()
	if err != nil {
		return 0, false
	}
	var rerr error
	err = raw.Control(func(fd uintptr) {
		for {
			if n, rerr = unix.Read(int(fd), buf); !errors.Is(rerr, unix.EINTR) {
				return
			}
		}
	})
	if errors.Is(rerr, unix.EAGAIN) {
		return 0, true
	}
	if err != nil || rerr != nil {
		return 0, false
	}
	return n, n > 0
}

func pipeSize(r *os.File) int {
	size := 64 << 10
	raw, err := r.SyscallConn()
	if err != nil {
		return size
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
	})
	return size
}

// stickyWriter discards everything after the first failure of its writer.
type stickyWriter struct {
	w           io.Writer
	waitDiscard func(n int) // called before bytes are discarded
	failed      bool
}

// Write never fails.
func (s *stickyWriter) Write(p []byte) (int, error) {
	if s.failed {
		s.waitDiscard(len(p))
	} else {
		_, err := s.w.Write(p)
		s.failed = err != nil
	}
	return len(p), nil
}

// onlyReader and onlyWriter hide the methods with which io.Copy would bypass deadlines with splice.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }
