// Package probe is the process in the box's network namespace that sends the traffic of a self-test, and the protocol
// to control it. The process holds no secrets and makes no decisions.
package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPlan bounds the size of a plan in bytes.
const maxPlan = 4 << 20

// Serve is the probing process: it reads a plan from in, sends the traffic, and writes a report to out. [Start] runs it
// in the box's network namespace, without privileges. It needs no files and no environment.
func Serve(in io.Reader, out io.Writer) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up privileges: %w", err)
	}
	var p Plan
	if err := json.NewDecoder(io.LimitReader(in, maxPlan)).Decode(&p); err != nil {
		return fmt.Errorf("cannot parse the plan: %w", err)
	}
	send := sendSocket
	if p.Raw {
		link, err := openLink(p.Tasks)
		if err != nil {
			return err
		}
		defer link.close()
		send = link.send
	}
	return json.NewEncoder(out).Encode(Report{Answers: perform(p.Tasks, send)})
}

// perform runs the tasks concurrently, each at its time.
func perform(tasks []Task, send func(Task) Answer) []Answer {
	answers := make([]Answer, len(tasks))
	start := time.Now()
	var running sync.WaitGroup
	for i, t := range tasks {
		running.Go(func() {
			time.Sleep(time.Until(start.Add(t.After)))
			answers[i] = send(t)
			answers[i].ID = t.ID
		})
	}
	running.Wait()
	return answers
}

// Kind is the way a task sends its data.
type Kind string

// The kinds.
const (
	TCP   Kind = "tcp"   // connect, send, read the answer
	UDP   Kind = "udp"   // send, read the answer
	Frame Kind = "frame" // whole packets, written to the link unchanged
)

// Task is one order for the probing process. It contains neither its purpose nor secrets.
type Task struct {
	ID        int            `json:"id"`
	Kind      Kind           `json:"kind"`
	After     time.Duration  `json:"after"` // since the start
	To        netip.AddrPort `json:"to"`
	Data      [][]byte       `json:"data,omitempty"` // written one by one; for frames: the packets
	EtherType uint16         `json:"ether_type,omitempty"`
	Token     []byte         `json:"token,omitempty"` // marks an answer to a frame
}

// Plan is the list of tasks of one process.
type Plan struct {
	Raw   bool   `json:"raw"` // the tasks are frames
	Tasks []Task `json:"tasks"`
}

// Outcome is the result of a task.
type Outcome string

// The outcomes.
const (
	Refused  Outcome = "refused" // a reset, or an ICMP error
	Silent   Outcome = "silent"  // no answer within the time
	Closed   Outcome = "closed"  // connected, then closed or reset without data
	Open     Outcome = "open"    // connected, and silent
	Answered Outcome = "answer"  // received data
	Failed   Outcome = "failed"  // could not be run
)

// Answer is the probing process's report on a task.
type Answer struct {
	ID      int     `json:"id"`
	Outcome Outcome `json:"outcome"`
	Data    []byte  `json:"data,omitempty"` // first bytes received
	Error   string  `json:"error,omitempty"`
}

// Report is the complete output of a probing process.
type Report struct {
	Answers []Answer `json:"answers"`
}

// wait is how long a task waits for each answer.
const wait = 900 * time.Millisecond

// nobody is the user and group of the probing process.
const nobody = 65534

// probeTimeout bounds a probing process. Its tasks finish long before.
const probeTimeout = 9 * time.Second

// Start runs a plan in the network namespace and returns its report. The process runs as user nobody. It has no
// capability except CAP_NET_RAW if the plan has frames, and inherits no environment and no files.
func Start(ctx context.Context, netns string, command []string, p Plan) (Report, error) {
	if len(p.Tasks) == 0 {
		return Report{}, nil
	}
	in, err := json.Marshal(p)
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var caps []uintptr
	if p.Raw {
		caps = []uintptr{unix.CAP_NET_RAW}
	}
	out, err := Execute(ctx, Process{NetNS: netns, Command: command, Caps: caps, In: in})
	if err != nil {
		return Report{}, err
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		return Report{}, fmt.Errorf("cannot parse the report of the probing process: %w", err)
	}
	return r, nil
}

// Process is a process that sends traffic for a test.
type Process struct {
	NetNS   string // path of its network namespace; "" for the caller's
	Command []string
	Env     []string
	Caps    []uintptr // its only capabilities
	In      []byte    // its standard input
}

// maxOutput bounds the output of a process in bytes.
const maxOutput = 8 << 20

// Execute runs a process as an unprivileged user, without files, until it ends or ctx does, and returns its output.
func Execute(ctx context.Context, p Process) ([]byte, error) {
	var out, errout bytes.Buffer
	cmd := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	cmd.Env, cmd.Dir = append([]string{}, p.Env...), "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(p.In), &limited{w: &out, remaining: maxOutput}, &limited{w: &errout, remaining: 4096}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Setpgid: true, AmbientCaps: p.Caps}
	cmd.WaitDelay = time.Second
	start := cmd.Start
	if p.NetNS != "" {
		start = func() error { return startIn(p.NetNS, cmd) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("the probing process cannot be started: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("the probing process failed: %w (%s)", err, strings.TrimSpace(errout.String()))
	}
	return out.Bytes(), nil
}

// limited discards the bytes beyond its limit.
type limited struct {
	w         io.Writer
	remaining int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.remaining)
	l.remaining -= n
	_, err := l.w.Write(b[:n])
	return len(b), err
}

// startIn starts cmd from a thread in the network namespace. A thread that cannot return to its namespace stays locked,
// so it exits with its goroutine and is never reused.
func startIn(netns string, cmd *exec.Cmd) error {
	ns, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("entering the box's network namespace: %w", err)
			return
		}
		err = cmd.Start()
		back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}
