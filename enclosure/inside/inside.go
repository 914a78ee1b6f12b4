// Package inside is the first process in the namespaces of a command that `gateway run` runs. It waits until the network is
// there, arranges the files as the command is to see them, starts the command without any privilege over the host, reaps
// orphans, and passes signals on. When it ends, in whatever way, the kernel kills everything in its PID namespace.
package inside

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The descriptors that the process outside gives to this one.
const (
	orders  = 3 // a Spec, then orders; it ends with the process outside
	reports = 4
)

// Main runs the command that is described to it, and returns the exit status of this process.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "gateway: this is started by `gateway run`")
		return 2
	}
	unix.CloseOnExec(orders)
	unix.CloseOnExec(reports)
	in, out := bufio.NewReader(os.NewFile(orders, "orders")), os.NewFile(reports, "reports")
	spec, err := receive(in)
	if err != nil {
		return 1 // the process outside is gone
	}
	c, err := start(spec)
	if err != nil {
		rep := Report{Kind: Failed, Value: 1, Text: err.Error()}
		if failed := (*startError)(nil); errors.As(err, &failed) {
			rep.Value = failed.status
		}
		rep.send(out)
		return 1
	}
	Report{Kind: Started}.send(out)
	go func() {
		c.obey(in)
		os.Exit(1) // the process outside is gone, and with this one ends the command
	}()
	c.await(out)
	return 0
}

// start arranges everything and starts the command. On failure nothing of the command has run.
func start(s Spec) (*command, error) {
	if err := arrange(s); err != nil {
		return nil, err
	}
	return launch(s)
}

// obey passes orders on until there is nobody to give any.
func (c *command) obey(in io.ByteReader) {
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

// await reaps what ends until the command does, and reports about it.
func (c *command) await(out io.Writer) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case err != nil || pid != c.pid:
			if errors.Is(err, unix.ECHILD) {
				return
			}
		case status.Stopped():
			Report{Kind: Stopped, Value: byte(status.StopSignal())}.send(out)
		case status.Signaled():
			Report{Kind: Killed, Value: byte(status.Signal())}.send(out)
			return
		case status.Exited():
			Report{Kind: Exited, Value: byte(status.ExitStatus())}.send(out)
			return
		}
	}
}
