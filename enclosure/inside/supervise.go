package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside/connect"
)

// The supervisor of a command's connections is a separate process. A file system in user space that never answers can keep
// it from ending, even when it is killed. The first process can always end, and that kills the command.

// Descriptors of the supervisor, after standard input, output and error, which are /dev/null.
const (
	listenerOfCalls = 3
	toFirst         = 4 // reports: Started or Failed, then Refused
	reachable       = 5 // []connect.Object as JSON, until EOF
)

// supervisor is the first process's handle of the supervisor.
type supervisor struct {
	pid     int
	reports *os.File      // the write end of its reports, to append a message
	flushed chan struct{} // closed when all earlier reports were passed on
}

// startSupervisor starts the supervisor for the calls that the listener reports, and returns when it answers them. refused
// is called with the path of each socket that the command is refused. The supervisor has the rights of this process, not
// of the calling thread, which is confined. When it ends, so does the first process.
func startSupervisor(listener int, reach []connect.Object, refused func(path string)) (*supervisor, error) {
	defer unix.Close(listener)
	data, err := json.Marshal(reach)
	if err != nil {
		return nil, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	s := &supervisor{flushed: make(chan struct{})}
	s.pid, err = forkUnconfined(listener, int(to.Fd()), int(in.Fd()))
	_, _ = to.Close(), in.Close()
	if err == nil {
		_, err = out.Write(data)
	}
	_ = out.Close()
	rep, failed := ReadReport(from)
	switch {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("starting the supervisor of connections: %w", err), from.Close())
	case failed != nil:
		return nil, errors.Join(fmt.Errorf("the supervisor of connections has ended: %w", failed), from.Close())
	case rep.Kind != Started:
		return nil, errors.Join(errors.New(rep.Text), from.Close())
	}
	if s.reports, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", from.Fd()), os.O_WRONLY, 0); err != nil {
		return nil, errors.Join(err, from.Close())
	}
	go s.forwardReports(from, refused)
	return s, nil
}

// forkUnconfined starts this program with descriptors after standard error, on a thread that is not confined.
func forkUnconfined(descriptors ...int) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	for _, fd := range descriptors {
		files = append(files, uintptr(fd))
	}
	forked := make(chan struct{})
	go func() {
		defer close(forked)
		pid, err = syscall.ForkExec("/proc/self/exe", []string{"gateway", Command}, &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: files})
	}()
	<-forked
	return pid, err
}

// forwardReports passes on the reports of the supervisor until flush.
func (s *supervisor) forwardReports(from io.Reader, refused func(path string)) {
	defer close(s.flushed)
	for {
		rep, err := ReadReport(from)
		if err != nil || rep.Kind != Refused {
			return
		}
		refused(rep.Text)
	}
}

// flush returns when all refusals up to now have been passed on.
func (s *supervisor) flush() {
	Report{Kind: Exited}.send(s.reports)
	<-s.flushed
}

// isSupervisor reports whether this process was started as the supervisor.
func isSupervisor() bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", listenerOfCalls))
	return err == nil && strings.HasPrefix(to, "anon_inode:seccomp") && os.Getppid() == 1
}

// supervise answers the calls of the command until this process is killed.
func supervise() int {
	for _, fd := range []int{listenerOfCalls, toFirst, reachable} {
		unix.CloseOnExec(fd)
	}
	out := os.NewFile(toFirst, "reports")
	var reach []connect.Object
	err := json.NewDecoder(os.NewFile(reachable, "reachable")).Decode(&reach)
	if err == nil {
		err = connect.Start(listenerOfCalls, reach, func(path string) { Report{Kind: Refused, Text: path}.send(out) })
	}
	if err != nil {
		Report{Kind: Failed, Text: err.Error()}.send(out)
		return 1
	}
	Report{Kind: Started}.send(out)
	select {} // it is killed with the first process
}
