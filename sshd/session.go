package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/sshflow"
)

// endOfWrite tells the peer that the sender accepts no more data on the channel, so that "ssh box yes | head -1" ends (OpenSSH's
// PROTOCOL, 2.1).
const endOfWrite = "eow@openssh.com"

// failedStatus is the exit status of a session whose command could not be run, as OpenSSH's client uses it for its own failures.
const failedStatus = 255

// session is one channel on which the client runs one command.
type session struct {
	c       *client
	channel gossh.Channel
	stdin   input
	env     map[string]string
	size    int // bytes in env
	term    *Terminal
	ctx     context.Context
	kill    context.CancelFunc

	begun bool // a command was requested
	work  sync.WaitGroup

	mu      sync.Mutex
	proc    Process
	pending []func(Process) // requests that arrived before the command had started
}

// session serves a session until the client has closed its channel.
func (c *client) session(opened gossh.NewChannel) {
	channel, requests, err := opened.Accept()
	if err != nil {
		return
	}
	s := &session{c: c, channel: channel, stdin: input{channel, c.flow.AddStream()}, env: map[string]string{}}
	defer s.stdin.stream.Remove()
	s.ctx, s.kill = context.WithCancel(c.ctx)
	defer s.kill()
	s.work.Go(c.contained(func() { c.drainExtended(channel) }))
	sshflow.ForEach(c.flow, requests, func(r *gossh.Request) {
		ok, then := s.handle(r)
		_ = r.Reply(ok, nil)
		if then != nil {
			s.work.Go(c.contained(then))
		}
	})
	s.kill()
	_ = channel.Close()
	s.work.Wait()
}

// handle decides about a request. It returns a function to call after the reply, or nil.
func (s *session) handle(r *gossh.Request) (ok bool, then func()) {
	switch r.Type {
	case "env":
		return s.addVariable(r.Payload), nil
	case "pty-req":
		return s.addTerminal(r.Payload), nil
	case "window-change":
		size, ok := parseSize(r.Payload)
		return ok && s.term != nil && s.afterStart(func(p Process) { _ = p.Resize(size) }), nil
	case "signal":
		name, ok := parseText(r.Payload, 16)
		return ok && s.begun && s.afterStart(func(p Process) { _ = p.Signal(name) }), nil
	case endOfWrite:
		return s.begun && s.afterStart(func(p Process) { _ = p.Signal("HUP") }), nil
	case "shell", "exec", "subsystem":
		return s.start(r)
	}
	return false, nil
}

// addVariable keeps an environment variable for the command.
func (s *session) addVariable(payload []byte) bool {
	name, value, ok := parseVariable(payload)
	if !ok || s.begun || len(s.env) >= maxVariables || s.size+len(name)+len(value) > maxEnvironment {
		return false
	}
	s.size += len(name) + len(value)
	s.env[name] = value
	return true
}

// addTerminal gives the command a terminal.
func (s *session) addTerminal(payload []byte) bool {
	term, size, ok := parseTerminal(payload)
	if !ok || s.begun {
		return false
	}
	if s.term = &size; term != "" {
		s.env["TERM"] = term
	}
	return true
}

// start begins the one command of a session.
func (s *session) start(r *gossh.Request) (ok bool, then func()) {
	if s.begun {
		return false, nil
	}
	line := ""
	if r.Type != "shell" {
		if line, ok = parseText(r.Payload, maxCommand); !ok {
			return false, nil
		}
	}
	if r.Type == "subsystem" {
		if line != "sftp" {
			return false, nil
		}
		s.begun = true
		return true, s.transfer
	}
	s.begun = true
	return true, func() { s.run(Command{Line: line, Env: s.env, Terminal: s.term}) }
}

// run runs a command and ends the session with its exit status.
func (s *session) run(command Command) {
	streams := Streams{In: s.stdin, Out: s.channel, Err: s.channel.Stderr()}
	exit, err := s.c.login.Run(s.ctx, command, streams, s.started)
	if err != nil {
		s.explain(err)
		exit = Exit{Status: failedStatus}
	}
	s.finish(exit)
}

// transfer serves SFTP.
func (s *session) transfer() {
	exit := Exit{}
	if err := s.c.login.Transfer(s.ctx, struct {
		io.Reader
		io.Writer
	}{s.stdin, s.channel}); err != nil {
		s.explain(err)
		exit.Status = failedStatus
	}
	s.finish(exit)
}

// explain shows an error to the client.
func (s *session) explain(err error) {
	if s.c.ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(s.channel.Stderr(), "boxgate: %s\r\n", printable(err.Error()))
	}
}

// printable replaces characters that are not printable, because a message may quote text of the box.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// signals are the names of signals in SSH (RFC 4254, section 6.10).
var signals = []string{"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2"}

// exitSignal is the payload of exit-signal (RFC 4254, section 6.10).
type exitSignal struct {
	Name          string
	CoreDumped    bool
	Message, Lang string
}

// finish sends how the command ended and closes the channel: its exit status, and the signal that killed it. RFC 4254 has the one or the
// other; OpenSSH's client ignores the signal, and libraries read both. Input that still arrives is discarded.
func (s *session) finish(exit Exit) {
	_ = s.channel.CloseWrite()
	if slices.Contains(signals, exit.Signal) {
		_, _ = s.channel.SendRequest("exit-signal", false, gossh.Marshal(exitSignal{Name: exit.Signal}))
	}
	_, _ = s.channel.SendRequest("exit-status", false, gossh.Marshal(struct{ Status uint32 }{uint32(exit.Status)}))
	_ = s.channel.Close()
	drain(s.channel, s.stdin.stream)
}

// maxPending bounds the requests before the command has started.
const maxPending = 64

// afterStart does something with the command, as soon as it has started.
func (s *session) afterStart(do func(Process)) bool {
	s.mu.Lock()
	if s.proc == nil {
		defer s.mu.Unlock()
		if len(s.pending) >= maxPending {
			return false
		}
		s.pending = append(s.pending, do)
		return true
	}
	s.mu.Unlock()
	do(s.proc)
	return true
}

// started is called when the command runs.
func (s *session) started(p Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
	for _, do := range s.pending {
		do(p)
	}
	s.pending = nil
}
