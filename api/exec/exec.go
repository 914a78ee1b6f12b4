package exec

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

// execBody is a command to run.
type execBody struct {
	Command []string `json:"command" doc:"program and arguments; executed without a shell" min:"1" example:"[\"ls\",\"-l\"]"`
	Folder  string   `json:"folder,omitempty" doc:"working directory, absolute or below /workspace/home"`
	Timeout *int64   `json:"timeout,omitempty" doc:"milliseconds after which the command is killed" min:"1" max:"604800000" example:"30000"`
}

// execView is the response of exec.
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
	spec.Command(&p, "/command", b.Command)
	dir := spec.Folder(&p, "/folder", b.Folder)
	if b.Timeout != nil && (*b.Timeout < 1 || *b.Timeout > 7*24*3600*1000) {
		p.Add("/timeout", "must be between 1 and 604800000 milliseconds")
	}
	return api.ExecRequest{Command: b.Command, Dir: dir}, p.Err()
}

// command is a command to run and its entry in the history.
type command struct {
	box     policy.BoxID
	request api.ExecRequest
	job     history.Job
	mark    string // the mark of markWatch; empty: no mark
}

func (e *Endpoints) readCommand(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := rest.Box(r, e.Boxes)
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
	job := history.Job{Type: history.Shell, Prompt: strings.Join(body.Command, " "), Timeout: milliseconds(body.Timeout)}
	return &command{box: box.ID, request: req, job: job}, nil
}

// milliseconds converts an optional number of milliseconds.
func milliseconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Millisecond
}

// result is the result of a command, and the error for its caller.
type result struct {
	run *history.Run
	res api.ExecResult
	err error
}

// start runs a command until it ends, its timeout passes or the run is cancelled. The command survives a disconnected
// client: the connection may only have broken, and a client can cancel a run explicitly. cutShort is called when the command
// is cut short; from then on, the writers must not block it for long.
func (e *Endpoints) start(ctx context.Context, c *command, stdout, stderr io.Writer, cutShort func()) <-chan result {
	done, left := make(chan result, 1), ctx.Done()
	go func() {
		run, res, err := e.History.Do(context.WithoutCancel(ctx), c.box, c.job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
			defer context.AfterFunc(ctx, cutShort)()
			lack, request := &markWatch{mark: c.mark, w: stderr}, c.request
			request.Left = left
			res, err := e.Host.Exec(ctx, c.box, request, e.recordOutput(run, stdout), e.recordOutput(run, lack))
			if what, lacking := lack.message(); err == nil && lacking {
				err = problem.Refuse(http.StatusUnprocessableEntity, "/language: %s", what)
			}
			return res, err
		})
		done <- result{run, res, err}
	}()
	return done
}

// recordOutput records the beginning of a run's output in the history and passes the output on to w. It fails once the
// history is full and w has failed.
func (e *Endpoints) recordOutput(r *history.Run, w io.Writer) io.Writer {
	var failed error
	return writerFunc(func(b []byte) (int, error) {
		full := e.History.AppendOutput(r, b)
		if failed == nil {
			_, failed = w.Write(b)
		}
		if full && failed != nil {
			return 0, failed
		}
		return len(b), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// reader parses a command from a request.
type reader func(http.ResponseWriter, *http.Request) (*command, error)

// buffered handles POST exec and POST code, which return the whole output in one response.
func (e *Endpoints) buffered(read reader) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
		c, err := read(w, r)
		if err != nil {
			return rest.Reply{}, err
		}
		answer, err := e.Output.Open(r.Context(), c.box)
		if err != nil {
			return rest.Reply{}, err
		}
		stdout, stderr := answer.Output(e.MaxOutput), answer.Output(e.MaxOutput)
		select {
		case end := <-e.start(r.Context(), c, stdout, stderr, func() {}):
			if end.err != nil {
				return rest.Reply{}, end.err
			}
			return rest.Reply{Body: execView{
				ExitCode: end.res.ExitCode, Output: stdout.Text(), Error: stderr.Text(), RunID: end.run.ID(),
				CPUNs: end.res.CPU.Nanoseconds(), Truncated: stdout.Cut() || stderr.Cut(),
			}}, nil
		case <-r.Context().Done():
			return rest.Reply{}, r.Context().Err()
		}
	}
}
