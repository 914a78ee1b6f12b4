// Package inside is the first process in the namespaces of a command that `gateway run` runs. It waits for the network,
// sets up the command's view of the file system, starts the command without any privilege over the host, reaps orphans, and
// forwards signals. When it ends, in whatever way, the kernel kills everything in its PID namespace. A second process, the
// supervisor, makes the connections of the command (package connect).
package inside

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside/connect"
)

// Descriptors from the process outside.
const (
	orders  = 3 // a Spec, then orders; EOF when the process outside ends
	reports = 4
)

// Main reads a Spec, runs the command, and returns the exit status of this process.
func Main() int {
	if isSupervisor() {
		return supervise()
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "gateway: this is started by `gateway run`")
		return 2
	}
	unix.CloseOnExec(orders)
	unix.CloseOnExec(reports)
	in, out := bufio.NewReader(os.NewFile(orders, "orders")), os.NewFile(reports, "reports")
	spec, err := readSpec(in)
	if err != nil {
		return 1 // the process outside is gone
	}
	r := &reporter{out: out, started: make(chan struct{})}
	c, err := start(spec, r.reportRefused)
	if err != nil {
		rep := Report{Kind: Failed, Value: 1, Text: err.Error()}
		if failed := (*startError)(nil); errors.As(err, &failed) {
			rep.Value = failed.status
		}
		rep.send(out)
		return 1
	}
	Report{Kind: Started}.send(out)
	close(r.started)
	go func() {
		c.runOrders(in)
		killAll()
		os.Exit(1) // the process outside is gone, and the end of this one ends the command
	}()
	c.reapUntilExit(out)
	killAll()
	return 0
}

// killAll kills every other process in the PID namespace, as the kernel does when this process ends.
func killAll() {
	if os.Getpid() == 1 { // otherwise it would kill processes of the host
		_ = unix.Kill(-1, unix.SIGKILL)
	}
}

// reporter reports refused connections of the command, after the report that it has started.
type reporter struct {
	out     io.Writer // a pipe; writes of short messages are atomic
	started chan struct{}
}

func (r *reporter) reportRefused(path string) {
	<-r.started
	Report{Kind: Refused, Text: path}.send(r.out)
}

// start sets everything up and starts the command. On failure the command has not run. refused is called with the path of
// each socket that the command was refused.
func start(s Spec, refused func(path string)) (*command, error) {
	if err := checkStandardFiles(); err != nil {
		return nil, err
	}
	reach, err := connect.Open(s.AllowedSockets)
	if err != nil {
		return nil, err
	}
	if err := setUpFiles(s); err != nil {
		return nil, err
	}
	return launch(s, func(listener int) (*supervisor, error) { return startSupervisor(listener, reach, refused) })
}

// checkStandardFiles refuses sockets as standard input, output or error, because the command would inherit them: it could
// connect past its network namespace, or name a destination. A connected Unix stream socket is allowed, since it leads only
// to its peer.
func checkStandardFiles() error {
	for fd, name := range []string{"standard input", "standard output", "standard error"} {
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if errors.Is(err, unix.ENOTSOCK) || errors.Is(err, unix.EBADF) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, unconnected := unix.Getpeername(fd)
		if family != unix.AF_UNIX || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET || unconnected != nil {
			return fmt.Errorf("%s is a socket of the host, through which the command could bypass the gateway: put a pipe in between, as in `cat | gateway run … | cat`", name)
		}
	}
	return nil
}

// runOrders executes orders until the process outside ends.
func (c *command) runOrders(in io.ByteReader) {
	for {
		order, err := in.ReadByte()
		switch {
		case err != nil:
			return
		case order == Resume:
			c.resume()
		default:
			_ = unix.Kill(c.pid, unix.Signal(order)) // it may have ended
		}
	}
}

// reapUntilExit reaps processes until the command ends, and reports its state changes.
func (c *command) reapUntilExit(out io.Writer) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case pid == c.supervisor.pid && !status.Stopped():
			return // without it the command has no connections
		case err != nil || pid != c.pid:
			if errors.Is(err, unix.ECHILD) {
				return
			}
		case status.Stopped():
			Report{Kind: Stopped, Value: byte(status.StopSignal())}.send(out)
		case status.Signaled():
			c.supervisor.flush()
			Report{Kind: Killed, Value: byte(status.Signal())}.send(out)
			return
		case status.Exited():
			c.supervisor.flush()
			Report{Kind: Exited, Value: byte(status.ExitStatus())}.send(out)
			return
		}
	}
}
