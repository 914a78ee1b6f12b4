// Command silence runs a command without a terminal, prints its output, and measures the longest time without a line of
// it, for `make newcomer`. Other programs make a silence longer, so it also measures how much they slow this one down,
// and counts the time that the silence would have taken on an idle machine.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

const usage = `usage: silence [-system] TABLE SYSTEM STEP COMMAND...

It appends a line to TABLE: system, step, exit status, time, longest silence, the same on an idle machine (each in
milliseconds), and the line printed before that, separated by tabs. It exits with the status of the command.

With -system all processes that it sees belong to the command, as in a PID namespace. Otherwise its children do.
`

func main() {
	args := os.Args[1:]
	system := len(args) > 0 && args[0] == "-system"
	if system {
		args = args[1:]
	}
	if len(args) < 4 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	m := newMachine(system)
	stop := m.follow()
	r, err := watch(exec.Command(args[3], args[4:]...), os.Stdout, m.idle)
	stop()
	if err == nil {
		err = r.record(args[0], args[1], args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "silence:", err)
		os.Exit(1)
	}
	os.Exit(r.status)
}

// result is the measurement of one command.
type result struct {
	status               int
	total, silence, idle time.Duration // silence and idle: of the silence that is longest on an idle machine
	after                string        // the line before it
}

// watch runs a command, copies its output line by line, and returns its measurement. idle returns a time that passes as
// on an idle machine.
func watch(cmd *exec.Cmd, out io.Writer, idle func() time.Duration) (r result, err error) {
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	cmd.Stderr = cmd.Stdout
	start, startIdle := time.Now(), idle()
	last, lastIdle, line := start, startIdle, ""
	heard := func() {
		now, nowIdle := time.Now(), idle()
		if nowIdle-lastIdle > r.idle {
			r.silence, r.idle, r.after = now.Sub(last), nowIdle-lastIdle, line
		}
		last, lastIdle = now, nowIdle
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	lines := bufio.NewReader(pipe)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			heard()
			line = strings.TrimSpace(text)
			if _, err := io.WriteString(out, text); err != nil {
				return r, err
			}
		}
		if err != nil {
			break
		}
	}
	exit := &exec.ExitError{}
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return r, err
	}
	heard()
	r.status, r.total = cmd.ProcessState.ExitCode(), last.Sub(start)
	return r, nil
}

// record appends the measurement to a table.
func (r result) record(table, system, step string) error {
	f, err := os.OpenFile(table, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	after := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, r.after)
	_, err = fmt.Fprintf(f, "%s\t%s\t%d\t%d\t%d\t%d\t%.60s\n", system, step, r.status,
		r.total.Milliseconds(), r.silence.Milliseconds(), r.idle.Milliseconds(), after)
	return errors.Join(err, f.Close())
}
