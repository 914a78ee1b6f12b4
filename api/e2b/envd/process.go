package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/process"
	"boxgate/api/spec"
)

// processService is the beginning of the paths of the procedures for processes.
const processService = "/process.Process/"

// processConfig is a command.
type processConfig struct {
	Cmd  string            `json:"cmd,omitempty"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type ptySize struct {
	Cols uint32 `json:"cols"`
	Rows uint32 `json:"rows"`
}

type pty struct {
	Size *ptySize `json:"size"`
}

func (p *pty) size(list *problem.List) api.TerminalSize {
	if p.Size == nil {
		return api.TerminalSize{Rows: 24, Cols: 80}
	}
	return spec.Terminal(list, "/pty/size", int64(p.Size.Rows), int64(p.Size.Cols))
}

type startRequest struct {
	Process *processConfig `json:"process"`
	Pty     *pty           `json:"pty"`
	Tag     string         `json:"tag"`
	Stdin   *bool          `json:"stdin"` // absent: true, as older versions of the SDK have no such field
}

// selector names a process.
type selector struct {
	Pid *uint32 `json:"pid"`
	Tag *string `json:"tag"`
}

type selected struct {
	Process *selector `json:"process"`
}

type processInfo struct {
	Config processConfig `json:"config"`
	Pid    int           `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
}

type listResponse struct {
	Processes []processInfo `json:"processes"`
}

type updateRequest struct {
	selected
	Pty *pty `json:"pty"`
}

// input is input of a command: Stdin, or of one with a terminal Pty.
type input struct {
	Stdin *[]byte `json:"stdin"`
	Pty   *[]byte `json:"pty"`
}

type sendInputRequest struct {
	selected
	Input *input `json:"input"`
}

type streamInputRequest struct {
	Start     *selected  `json:"start"`
	Data      *inputData `json:"data"`
	KeepAlive *struct{}  `json:"keepalive"`
}

type inputData struct {
	Input *input `json:"input"`
}

type sendSignalRequest struct {
	selected
	Signal enum `json:"signal"`
}

type empty struct{}

// eventResponse is an element of the streams of Start and Connect.
type eventResponse struct {
	Event event `json:"event"`
}

// event is an event of a process. One field is set.
type event struct {
	Start     *startEvent `json:"start,omitempty"`
	Data      *dataEvent  `json:"data,omitempty"`
	End       *endEvent   `json:"end,omitempty"`
	KeepAlive *empty      `json:"keepalive,omitempty"`
}

type startEvent struct {
	Pid int `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Pty    []byte `json:"pty,omitempty"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

func (e *Endpoints) addProcess() {
	unary(e, processService+"List", "listProcesses", e.list)
	serverStream(e, processService+"Start", "startProcess", e.start)
	serverStream(e, processService+"Connect", "readProcess", e.connect)
	unary(e, processService+"Update", "resizeProcess", e.update)
	unary(e, processService+"SendInput", "writeProcess", e.sendInput)
	clientStream(e, processService+"StreamInput", "writeProcess", e.streamInput)
	unary(e, processService+"SendSignal", "signalProcess", e.sendSignal)
	unary(e, processService+"CloseStdin", "writeProcess", e.closeStdin)
}

// list returns the processes of a box. They have environments if the same API key started them.
func (e *Endpoints) list(ctx context.Context, c *call, _ *empty) (*listResponse, error) {
	res := &listResponse{Processes: []processInfo{}}
	for _, p := range e.cfg.Processes.List(c.box.ID) {
		req := p.Request()
		if len(req.Command) == 0 {
			continue // it has just ended
		}
		info := processInfo{Config: processConfig{Cmd: req.Command[0], Args: req.Command[1:], Cwd: req.Dir}, Pid: p.Pid(), Tag: p.Tag()}
		if p.Starter() == api.CallerOf(ctx) {
			info.Config.Envs = req.Env
		}
		res.Processes = append(res.Processes, info)
	}
	return res, nil
}

// request translates the request of a process.
func (c *call) request(ctx context.Context, m *startRequest) (process.Request, error) {
	var list problem.List
	if m.Process == nil || m.Process.Cmd == "" {
		return process.Request{}, problem.Invalid("/process/cmd", "is missing")
	}
	req := process.Request{Tag: m.Tag, Input: m.Pty != nil || m.Stdin == nil || *m.Stdin}
	req.Command, req.User, req.Env = append([]string{m.Process.Cmd}, m.Process.Args...), c.user, m.Process.Envs
	req.Prompt = strings.Join(req.Command, " ")
	if shell := m.Process.Args; len(shell) == 3 && shell[1] == "-c" { // as the SDK runs a line
		req.Prompt = shell[2]
	}
	spec.Command(&list, "/process", req.Command)
	spec.Environment(&list, "/process/envs", req.Env)
	if m.Pty != nil {
		size := m.Pty.size(&list)
		req.Terminal = &size
	}
	var err error
	if req.Dir, err = resolve(c.box, c.user, m.Process.Cwd); err == nil {
		err = list.Err()
	}
	if until, ok := ctx.Deadline(); ok && err == nil {
		req.Timeout = max(time.Millisecond, time.Until(until))
	}
	return req, err
}

// start starts a process. It outlives the stream, but not the time limit of the call.
func (e *Endpoints) start(ctx context.Context, c *call, m *startRequest, send func(*eventResponse) error) error {
	req, err := c.request(ctx, m)
	if err != nil {
		return err
	}
	p, out, err := e.cfg.Processes.Start(ctx, c.box.ID, req)
	if err != nil {
		return err
	}
	defer out.Close()
	exit, err := c.follow(ctx, p, out, req.Terminal != nil, send)
	if err != nil {
		return err
	}
	if errors.Is(exit.Err, context.DeadlineExceeded) {
		return exit.Err
	}
	return sendEnd(exit, send)
}

// connect follows a process that runs, or gives the result of one that has just ended.
func (e *Endpoints) connect(ctx context.Context, c *call, m *selected, send func(*eventResponse) error) error {
	p, err := e.find(c, m.Process)
	if err != nil {
		return err
	}
	terminal := p.Request().Terminal != nil
	out, err := p.Attach(ctx)
	if err != nil {
		return err
	}
	defer out.Close()
	exit, err := c.follow(ctx, p, out, terminal, send)
	if err != nil {
		return err
	}
	return sendEnd(exit, send)
}

// follow sends the start, the output and the signs of life of a process, and returns its result.
func (c *call) follow(ctx context.Context, p *process.Process, out *process.Output, terminal bool, send func(*eventResponse) error) (process.Exit, error) {
	if err := send(&eventResponse{event{Start: &startEvent{p.Pid()}}}); err != nil {
		return process.Exit{}, err
	}
	for pause := c.keepAlive(); ; {
		wait, stop := context.WithTimeoutCause(ctx, pause, errQuiet)
		chunk, err := out.Next(wait)
		stop()
		switch {
		case err == nil:
			err = send(&eventResponse{event{Data: dataOf(chunk, terminal)}})
		case errors.Is(err, io.EOF):
			return p.Exit(ctx)
		case errors.Is(err, errQuiet) && ctx.Err() == nil:
			err = send(&eventResponse{event{KeepAlive: &empty{}}})
		}
		if err != nil {
			return process.Exit{}, err
		}
	}
}

func dataOf(chunk process.Chunk, terminal bool) *dataEvent {
	switch {
	case terminal:
		return &dataEvent{Pty: chunk.Data}
	case chunk.Stream == process.Stderr:
		return &dataEvent{Stderr: chunk.Data}
	default:
		return &dataEvent{Stdout: chunk.Data}
	}
}

// signals are the names of signals in the results of processes.
var signals = map[string]string{"KILL": "signal: killed", "TERM": "signal: terminated", "INT": "signal: interrupt", "HUP": "signal: hangup", "QUIT": "signal: quit"}

// sendEnd sends the result of a process.
func sendEnd(exit process.Exit, send func(*eventResponse) error) error {
	if errors.Is(exit.Err, access.ErrKeyEnded) {
		return exit.Err
	}
	end := &endEvent{ExitCode: exit.Code, Exited: true, Status: fmt.Sprintf("exit status %d", exit.Code)}
	switch {
	case errors.Is(exit.Err, context.DeadlineExceeded):
		end = &endEvent{ExitCode: -1, Status: signals["KILL"]}
	case exit.Err != nil:
		_, body := problem.StatusOf(exit.Err)
		end = &endEvent{ExitCode: -1, Status: signals["KILL"], Error: body.Error}
	case exit.Signal != "":
		end = &endEvent{ExitCode: -1, Status: signals[exit.Signal]}
	}
	if end.Error == "" && end.ExitCode != 0 {
		end.Error = end.Status
	}
	if exit.OutOfMemory {
		end.Error += ": the sandbox ran out of memory"
	}
	return send(&eventResponse{event{End: end}})
}

// find finds the process that a request names.
func (e *Endpoints) find(c *call, s *selector) (*process.Process, error) {
	switch {
	case s != nil && s.Pid != nil:
		return e.cfg.Processes.Find(c.box.ID, int(*s.Pid))
	case s != nil && s.Tag != nil:
		return e.cfg.Processes.FindTag(c.box.ID, *s.Tag)
	}
	return nil, problem.Invalid("/process", "must have a pid or a tag")
}

func (e *Endpoints) update(_ context.Context, c *call, m *updateRequest) (*empty, error) {
	p, err := e.find(c, m.Process)
	if err != nil || m.Pty == nil {
		return &empty{}, err
	}
	var list problem.List
	size := m.Pty.size(&list)
	if err := list.Err(); err != nil {
		return nil, err
	}
	return &empty{}, p.Resize(size)
}

// feed hands input over to a process.
func feed(ctx context.Context, p *process.Process, in *input) error {
	terminal := p.Request().Terminal != nil
	switch {
	case p.Ended():
		return p.Write(ctx, nil)
	case in != nil && in.Pty != nil && terminal:
		return p.Write(ctx, *in.Pty)
	case in != nil && in.Stdin != nil && !terminal:
		return p.Write(ctx, *in.Stdin)
	case in != nil && in.Pty != nil:
		return api.Errorf(api.ErrConflict, "the command has no terminal: send stdin instead of pty")
	case in != nil && in.Stdin != nil:
		return api.Errorf(api.ErrConflict, "the command has a terminal: send pty instead of stdin")
	}
	return problem.Invalid("/input", "must have stdin or pty")
}

func (e *Endpoints) sendInput(ctx context.Context, c *call, m *sendInputRequest) (*empty, error) {
	p, err := e.find(c, m.Process)
	if err == nil {
		err = feed(ctx, p, m.Input)
	}
	return &empty{}, err
}

func (e *Endpoints) streamInput(ctx context.Context, c *call, next func() (*streamInputRequest, bool)) (*empty, error) {
	var p *process.Process
	for m, ok := next(); ok; m, ok = next() {
		var err error
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case m.Start != nil:
			p, err = e.find(c, m.Start.Process)
		case m.Data != nil && p == nil:
			err = problem.Invalid("/start", "must be in the first message")
		case m.Data != nil:
			err = feed(ctx, p, m.Data.Input)
		case m.KeepAlive == nil:
			err = problem.Invalid("", "must have start, data or keepalive")
		}
		if err != nil {
			return nil, err
		}
	}
	return &empty{}, nil
}

func (e *Endpoints) sendSignal(_ context.Context, c *call, m *sendSignalRequest) (*empty, error) {
	p, err := e.find(c, m.Process)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Signal.is("SIGNAL_SIGKILL", 9):
		return &empty{}, p.Signal("KILL")
	case m.Signal.is("SIGNAL_SIGTERM", 15):
		return &empty{}, p.Signal("TERM")
	}
	return nil, api.Errorf(api.ErrNotSupported, "the signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")
}

func (e *Endpoints) closeStdin(_ context.Context, c *call, m *selected) (*empty, error) {
	p, err := e.find(c, m.Process)
	if err != nil {
		return nil, err
	}
	if p.Request().Terminal != nil {
		return nil, api.Errorf(api.ErrConflict, "the input of a terminal cannot be closed; send Ctrl+D (byte 4)")
	}
	return &empty{}, p.CloseInput()
}
