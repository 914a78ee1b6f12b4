package api

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

	"boxgate/policy"
)

// Workspace is the home and working directory of a box.
const Workspace = "/workspace/home"

// execBody is a command to run.
type execBody struct {
	Command []string `json:"command" doc:"program and arguments; no shell in between"`
	Folder  string   `json:"folder,omitempty" doc:"working directory, absolute or below /workspace/home"`
	Timeout *int64   `json:"timeout,omitempty" doc:"milliseconds after which the command is killed"`
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

var errCancelled = errors.New("the run was cancelled")

func (b *execBody) request() (ExecRequest, error) {
	var p problems
	if len(b.Command) == 0 || b.Command[0] == "" {
		p.add("/command", "must name a program, such as [\"ls\", \"-l\"]")
	}
	sum := 0
	for i, arg := range b.Command {
		if strings.ContainsRune(arg, 0) {
			p.add("/command/"+strconv.Itoa(i), "must not hold NUL")
		}
		if len(arg) > maxArgument {
			p.add("/command/"+strconv.Itoa(i), "has %d bytes; the limit is %d, above which the kernel does not start it", len(arg), maxArgument)
		}
		sum += len(arg) + argumentCost
	}
	if sum > maxArguments {
		p.add("/command", "needs %d bytes; the limit is %d, above which the kernel does not start it", sum, maxArguments)
	}
	if strings.ContainsRune(b.Folder, 0) || len(b.Folder) > 4095 {
		p.add("/folder", "is not a path")
	}
	if b.Timeout != nil && (*b.Timeout < 1 || *b.Timeout > 7*24*3600*1000) {
		p.add("/timeout", "must be between 1 and 604800000 milliseconds")
	}
	dir := path.Clean(b.Folder)
	if !path.IsAbs(dir) {
		dir = path.Join(Workspace, dir)
	}
	return ExecRequest{Command: b.Command, Dir: dir}, p.err()
}

// command is one exec being served.
type command struct {
	box     policy.BoxID
	request ExecRequest
	timeout time.Duration // 0: none
	run     *run
}

func (a *API) readCommand(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := a.box(r)
	if err != nil {
		return nil, err
	}
	var body execBody
	if err := a.decode(w, r, &body); err != nil {
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
func (a *API) do(ctx context.Context, c *command, stdout, stderr io.Writer) (ExecResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.timeout)
		defer stop()
	}
	c.run = a.history.start(c.box, c.request.Command, cancel)
	res, err := a.Host.Exec(ctx, c.box, c.request, a.remember(c.run, stdout), a.remember(c.run, stderr))
	status, message := "completed", ""
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, errCancelled):
		err = Errorf(ErrConflict, "%v", errCancelled)
		status, message = "cancelled", errCancelled.Error()
	case err != nil && errors.Is(cause, context.DeadlineExceeded):
		err = Errorf(context.DeadlineExceeded, "the command was killed after its timeout of %v", c.timeout)
		status, message = "failed", err.Error()
	case err != nil && ctx.Err() != nil:
		status, message = "cancelled", "the client disconnected"
	case err != nil:
		_, body := statusOf(err)
		status, message = "failed", body.Error
	case res.ExitCode != 0:
		status = "failed"
	}
	a.history.end(c.run, res, err, status, message)
	return res, err
}

// remember copies the beginning of a run's output into the history on its way to w.
func (a *API) remember(r *run, w io.Writer) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		a.history.wrote(r, b)
		return w.Write(b)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// exec is POST exec: the whole output in one answer.
func (a *API) exec(w http.ResponseWriter, r *http.Request) (reply, error) {
	c, err := a.readCommand(w, r)
	if err != nil {
		return reply{}, err
	}
	stdout, stderr := &capture{most: a.MaxOutput}, &capture{most: a.MaxOutput}
	res, err := a.do(r.Context(), c, stdout, stderr)
	if err != nil {
		return reply{}, err
	}
	return reply{body: execView{
		ExitCode: res.ExitCode, Output: stdout.text(), Error: stderr.text(), RunID: c.run.view.ID,
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

// runsView is the answer of runs.
type runsView struct {
	Runs []runView `json:"runs"`
}

func (a *API) listRuns(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return reply{body: runsView{a.history.runs(box.ID)}}, nil
}

func (a *API) cancelRun(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	view, ok := a.history.cancelRun(box.ID, r.PathValue("run"))
	if !ok {
		return reply{}, Errorf(ErrNotFound, "box %s has no run %q", box.ID, clip(r.PathValue("run")))
	}
	return reply{body: view}, nil
}

// logsView is the answer of logs.
type logsView struct {
	Logs []logEntry `json:"logs"`
}

func (a *API) getLogs(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	offset, err := count(r, "offset", 0, maxLogs)
	if err != nil {
		return reply{}, err
	}
	limit, err := count(r, "limit", maxLogs, maxLogs)
	if err != nil {
		return reply{}, err
	}
	return reply{body: logsView{a.history.logs(box.ID, offset, limit)}}, nil
}

// count reads a whole number from the query.
func count(r *http.Request, name string, absent, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, refuse(http.StatusUnprocessableEntity, "query parameter %q must be a whole number", name)
	}
	return min(n, most), nil
}

// runAgent is POST run and run/stream: the hosted product's agents are not part of this gateway.
func (a *API) runAgent(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	if box.Hosted.CustomRunner != nil {
		return reply{}, Errorf(ErrNotSupported, "this gateway does not run agents; start the box's custom harness with exec or exec-stream")
	}
	return reply{}, Errorf(ErrNotSupported, "this gateway does not run agents; run the agent's own command in the box with exec or exec-stream")
}
