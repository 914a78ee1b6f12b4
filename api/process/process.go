// Package process keeps the commands of boxes that several calls share: one call starts a command, and others list, read, feed and end
// it. A command outlives the call that started it. It ends with its box, with its timeout, when the API key that started it ends, and
// when the gateway stops.
package process

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/session"
	"boxgate/policy"
)

// Sessions runs commands; implemented by [session.Endpoints], whose limits on the sessions of a box apply.
type Sessions interface {
	Run(ctx context.Context, box policy.BoxID, d session.Direct) (api.ExecResult, error)
}

// Service keeps processes. Create it with [New]. Safe for concurrent use.
type Service struct {
	sessions Sessions

	mu    sync.Mutex
	boxes map[policy.BoxID]*table
}

// table is the processes of one box.
type table struct {
	running []*Process // in the order of their start
	ended   []*Process // likewise; without their requests
}

// New makes a service without processes.
func New(s Sessions) *Service { return &Service{sessions: s, boxes: map[policy.BoxID]*table{}} }

// Request is a process to start.
type Request struct {
	api.SessionRequest
	Tag     string        // finds the process besides its ID; may be empty
	Input   bool          // it gets input by [Process.Write]; otherwise its input is empty
	Timeout time.Duration // after which it is killed; 0: never
	Prompt  string        // describes it in the history of the box
}

// MaxTag is the maximum size of a tag in bytes.
const MaxTag = 256

// Bounds of the processes that have ended but can still be found, for a reader that was disconnected.
const (
	endedTime = 30 * time.Second
	maxEnded  = 32 // of one box
)

// Process is a command of a box. Safe for concurrent use.
type Process struct {
	box     policy.BoxID
	starter api.Caller
	tag     string
	begun   time.Time
	in      *input
	out     *output
	kill    context.CancelCauseFunc
	done    chan struct{} // closed once exit is set

	// Set before the process can be found.
	proc api.Session
	pid  int
	run  string

	mu      sync.Mutex
	request Request // zero once it has ended
	sent    []string
	exit    Exit
}

// Exit is how a process ended.
type Exit struct {
	Code        int    // exit status, or 128 plus a signal
	Signal      string // the signal, sent by [Process.Signal], that ended it; "" if none did
	OutOfMemory bool   // the kernel killed it for lack of memory
	Err         error  // why it was killed by the gateway, or could not be run to its end; nil: it ended itself
}

// errTimedOut ends a process after its timeout.
func errTimedOut(after time.Duration) error {
	return api.Errorf(context.DeadlineExceeded, "the command was killed after its timeout of %v", after)
}

// Start starts a process. The returned output has everything that it writes; close it. The process ends with ctx only until Start has
// returned, and then with the credential of ctx ([access.Outlive]).
func (s *Service) Start(ctx context.Context, box policy.BoxID, req Request) (*Process, *Output, error) {
	if len(req.Tag) > MaxTag || !utf8.ValidString(req.Tag) {
		return nil, nil, problem.Invalid("/tag", "must be text of at most %d bytes", MaxTag)
	}
	p := &Process{
		box: box, starter: api.CallerOf(ctx), tag: req.Tag, begun: time.Now(), request: req, in: newInput(req.Input), out: newOutput(), done: make(chan struct{}),
	}
	first, err := p.out.attach(ctx)
	if err != nil {
		return nil, nil, err
	}
	var running context.Context
	running, p.kill = access.Outlive(ctx)
	context.AfterFunc(running, p.out.drop)
	started := make(chan struct{})
	go s.run(running, p, started)
	select {
	case <-started:
		return p, first, nil
	case <-p.done:
		select {
		case <-started:
			return p, first, nil
		default:
		}
		err = p.exit.Err
	case <-ctx.Done():
		err = context.Cause(ctx)
		p.kill(err)
	}
	first.Close()
	return nil, nil, err
}

// run runs a process to its end.
func (s *Service) run(ctx context.Context, p *Process, started chan struct{}) {
	if after := p.request.Timeout; after > 0 {
		timer := time.AfterFunc(after, func() { p.kill(errTimedOut(after)) })
		defer timer.Stop()
	}
	res, err := s.sessions.Run(ctx, p.box, session.Direct{
		Request: p.request.SessionRequest, Prompt: p.request.Prompt, Timeout: p.request.Timeout, In: p.in, Out: p.out.stream(Stdout), Err: p.out.stream(Stderr),
		Started: func(proc api.Session, run string) {
			p.proc, p.pid, p.run = proc, proc.Pid(), run
			s.add(p)
			close(started)
		},
	})
	p.mu.Lock()
	p.exit = Exit{Code: res.ExitCode, OutOfMemory: res.OutOfMemory, Err: err}
	for _, name := range p.sent {
		if err == nil && res.ExitCode == 128+int(unix.SignalNum("SIG"+name)) {
			p.exit.Signal = name
		}
	}
	p.request = Request{}
	p.mu.Unlock()
	s.ended(p)
	close(p.done)
	p.out.end()
	p.in.end()
	p.kill(nil)
}

func (s *Service) add(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.boxes[p.box]
	if t == nil {
		t = &table{}
		s.boxes[p.box] = t
	}
	t.running = append(t.running, p)
	// An earlier process with the same ID or tag must not be taken for it.
	t.ended = slices.DeleteFunc(t.ended, func(e *Process) bool { return e.pid == p.pid || p.tag != "" && e.tag == p.tag })
}

// ended moves a process to the ended ones of its box, for a while.
func (s *Service) ended(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.boxes[p.box]
	if t == nil || !slices.Contains(t.running, p) {
		return // it was not started
	}
	t.running = slices.DeleteFunc(t.running, func(r *Process) bool { return r == p })
	if t.ended = append(t.ended, p); len(t.ended) > maxEnded {
		t.ended = slices.Delete(t.ended, 0, 1)
	}
	time.AfterFunc(endedTime, func() { s.forget(p) })
}

func (s *Service) forget(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.boxes[p.box]
	if t == nil {
		return
	}
	t.ended = slices.DeleteFunc(t.ended, func(e *Process) bool { return e == p })
	if len(t.running) == 0 && len(t.ended) == 0 {
		delete(s.boxes, p.box)
	}
}

// List returns the running processes of a box, in the order of their start.
func (s *Service) List(box policy.BoxID) []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.boxes[box]; t != nil {
		return slices.Clone(t.running)
	}
	return nil
}

// Find returns the process with this ID in the box.
func (s *Service) Find(box policy.BoxID, pid int) (*Process, error) {
	p := s.find(box, func(p *Process) bool { return p.pid == pid })
	if p == nil {
		return nil, api.Errorf(api.ErrNotFound, "box %s has no process %d that was started as one; it may have ended", box, pid)
	}
	return p, nil
}

// FindTag returns the latest process with this tag.
func (s *Service) FindTag(box policy.BoxID, tag string) (*Process, error) {
	p := s.find(box, func(p *Process) bool { return p.tag == tag })
	if p == nil || tag == "" {
		return nil, api.Errorf(api.ErrNotFound, "box %s has no process with the tag %q; it may have ended", box, problem.Clip(tag))
	}
	return p, nil
}

// find prefers running processes, and among them the latest.
func (s *Service) find(box policy.BoxID, is func(*Process) bool) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.boxes[box]
	if t == nil {
		return nil
	}
	for _, list := range [][]*Process{t.running, t.ended} {
		for _, p := range slices.Backward(list) {
			if is(p) {
				return p
			}
		}
	}
	return nil
}

// Pid returns the ID of the process in the box.
func (p *Process) Pid() int { return p.pid }

// Tag returns the tag; "" if it has none.
func (p *Process) Tag() string { return p.tag }

// Run returns the ID of its run in the history of the box.
func (p *Process) Run() string { return p.run }

// Starter returns the API key that started it.
func (p *Process) Starter() api.Caller { return p.starter }

// Begun returns the time of its start.
func (p *Process) Begun() time.Time { return p.begun }

// Request returns how it was started; the zero value once it has ended.
func (p *Process) Request() Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.request
}

// Attach returns the output from now on. The caller must close it. Its memory is charged to the quota of ctx until then.
func (p *Process) Attach(ctx context.Context) (*Output, error) { return p.out.attach(ctx) }

// Exit returns how the process ended. It waits for the end until ctx ends, and then returns the cause of that.
func (p *Process) Exit(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// errEnded is the answer of calls to a process that has ended.
func (p *Process) errEnded() error {
	return api.Errorf(api.ErrNotFound, "process %d has ended", p.pid)
}

// Write hands input over to the process. It waits while the process reads too slowly, until ctx ends.
func (p *Process) Write(ctx context.Context, b []byte) error {
	if p.Ended() {
		return p.errEnded()
	}
	err := p.in.write(ctx, b)
	if errors.Is(err, ErrNoInput) && p.Ended() {
		return p.errEnded()
	}
	return err
}

// CloseInput ends the input of the process.
func (p *Process) CloseInput() error {
	if p.Ended() {
		return p.errEnded()
	}
	p.in.close()
	return nil
}

// Signal sends one of [api.SessionSignals] to the process and its descendants.
func (p *Process) Signal(name string) error {
	if !api.IsSessionSignal(name) {
		return problem.Invalid("/signal", "must be TERM, KILL, INT, HUP, TSTP, QUIT, USR1 or USR2")
	}
	if p.Ended() {
		return p.errEnded()
	}
	p.mu.Lock()
	if !slices.Contains(p.sent, name) {
		p.sent = append(p.sent, name)
	}
	p.mu.Unlock()
	return p.proc.Signal(name)
}

// Resize sets the size of the terminal. A process without a terminal is an error.
func (p *Process) Resize(size api.TerminalSize) error {
	if p.Ended() {
		return p.errEnded()
	}
	if p.Request().Terminal == nil {
		return api.Errorf(api.ErrConflict, "process %d has no terminal", p.pid)
	}
	return p.proc.Resize(size)
}
