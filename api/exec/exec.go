package exec

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// Workspace is the home and working directory of a box.
const Workspace = "/workspace/home"

// execBody is a command to run.
type execBody struct {
	Command []string `json:"command" doc:"program and arguments; no shell in between" min:"1" example:"[\"ls\",\"-l\"]"`
	Folder  string   `json:"folder,omitempty" doc:"working directory, absolute or below /workspace/home"`
	Timeout *int64   `json:"timeout,omitempty" doc:"milliseconds after which the command is killed" min:"1" max:"604800000" example:"30000"`
}

// execView is the answer of exec.
type execView struct {
	ExitCode  int    `json:"exit_code"`
	Output    string `json:"output" doc:"standard output"`
	Error     string `json:"error,omitempty" doc:"standard error"`
	RunID     string `json:"run_id"`
	CPUNs     int64  `json:"cpu_ns"`
	Truncated bool   `json:"truncated,omitempty" doc:"output or error was truncated"`
}

func (b *execBody) request() (api.ExecRequest, error) {
	var p problem.List
	if len(b.Command) == 0 || b.Command[0] == "" {
		p.Add("/command", "must name a program, such as [\"ls\", \"-l\"]")
	}
	sum := 0
	for i, arg := range b.Command {
		if strings.ContainsRune(arg, 0) {
			p.Add("/command/"+strconv.Itoa(i), "must not hold NUL")
		}
		if len(arg) > api.MaxArgument {
			p.Add("/command/"+strconv.Itoa(i), "has %d bytes; the limit is %d, above which the kernel does not start it", len(arg), api.MaxArgument)
		}
		sum += len(arg) + api.ArgumentCost
	}
	if sum > api.MaxArguments {
		p.Add("/command", "needs %d bytes; the limit is %d, above which the kernel does not start it", sum, api.MaxArguments)
	}
	if strings.ContainsRune(b.Folder, 0) || len(b.Folder) > 4095 {
		p.Add("/folder", "is not a path")
	}
	if b.Timeout != nil && (*b.Timeout < 1 || *b.Timeout > 7*24*3600*1000) {
		p.Add("/timeout", "must be between 1 and 604800000 milliseconds")
	}
	dir := path.Clean(b.Folder)
	if !path.IsAbs(dir) {
		dir = path.Join(Workspace, dir)
	}
	return api.ExecRequest{Command: b.Command, Dir: dir}, p.Err()
}

// command is one exec being served.
type command struct {
	box     policy.BoxID
	request api.ExecRequest
	timeout time.Duration // 0: none
	run     *history.Run
}

func (e *Endpoints) readCommand(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := rest.Box(r, e.Host)
	if err != nil {
		return nil, err
	}
	var body execBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return nil, err
	}
	req, err := body.request()
	if err != nil {
		return nil, err
	}
	c := &command{box: box.ID, request: req}
	if body.Timeout != nil {
		c.timeout = time.Duration(*body.Timeout) * time.Millisecond
	}
	return c, nil
}

// do runs a command until it ends, its timeout passes, the client disconnects or the run is cancelled.
func (e *Endpoints) do(ctx context.Context, c *command, stdout, stderr io.Writer) (api.ExecResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.timeout)
		defer stop()
	}
	c.run = e.History.Start(c.box, c.request.Command, cancel)
	res, err := e.Host.Exec(ctx, c.box, c.request, e.remember(c.run, stdout), e.remember(c.run, stderr))
	status, message := "completed", ""
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, history.ErrCancelled):
		err = api.Errorf(api.ErrConflict, "%v", history.ErrCancelled)
		status, message = "cancelled", history.ErrCancelled.Error()
	case err != nil && errors.Is(cause, context.DeadlineExceeded):
		err = api.Errorf(context.DeadlineExceeded, "the command was killed after its timeout of %v", c.timeout)
		status, message = "failed", err.Error()
	case err != nil && ctx.Err() != nil:
		status, message = "cancelled", "the client disconnected"
	case err != nil:
		_, body := problem.StatusOf(err)
		status, message = "failed", body.Error
	case res.ExitCode != 0:
		status = "failed"
	}
	e.History.End(c.run, res, err, status, message)
	return res, err
}

// remember copies the beginning of a run's output into the history on its way to w.
func (e *Endpoints) remember(r *history.Run, w io.Writer) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		e.History.Wrote(r, b)
		return w.Write(b)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// exec is POST exec: the whole output in one answer.
func (e *Endpoints) exec(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	c, err := e.readCommand(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	stdout, stderr := &capture{most: e.MaxOutput}, &capture{most: e.MaxOutput}
	res, err := e.do(r.Context(), c, stdout, stderr)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: execView{
		ExitCode: res.ExitCode, Output: stdout.text(), Error: stderr.text(), RunID: c.run.ID(),
		CPUNs: res.CPU.Nanoseconds(), Truncated: stdout.cut || stderr.cut,
	}}, nil
}

// capture keeps the first bytes of a stream and discards the rest, so that the command does not block.
type capture struct {
	most int
	mu   sync.Mutex
	buf  []byte
	cut  bool
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.most - len(c.buf)
	c.buf = append(c.buf, b[:min(room, len(b))]...)
	c.cut = c.cut || len(b) > room
	return len(b), nil
}

// text returns what was captured as valid UTF-8, for JSON: other bytes become U+FFFD.
func (c *capture) text() string { return strings.ToValidUTF8(string(c.buf), "\uFFFD") }
