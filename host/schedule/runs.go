package schedule

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/schedules"
	"boxgate/store"
)

const (
	defaultRun = time.Hour // for a schedule without a timeout
	mostResult = 64 << 10  // maximum output in a webhook's payload, in bytes
)

// errNoAgent is the error of agent runs.
var errNoAgent = api.Errorf(api.ErrNotSupported, "this gateway does not run agents; make a schedule of type exec with the agent's own command")

// errStopped is the error of runs that were interrupted because the gateway stopped.
var errStopped = api.Errorf(api.ErrUnavailable, "the gateway was stopped during the run")

// runner runs schedules as ordinary commands, recorded in the history of the box.
type runner struct {
	commands Commands
	history  *history.History
}

// Run implements [Runner].
func (r *runner) Run(ctx context.Context, s store.Schedule, claim func(string) error) Outcome {
	var seen result
	_, res, err := r.history.Do(ctx, s.Box, jobOf(s), func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
		if err := claim(run.ID()); err != nil {
			return api.ExecResult{}, api.Errorf(api.ErrUnavailable, "the run did not begin: the schedule was changed, or could not be stored: %w", err)
		}
		if s.Type == schedules.TypePrompt {
			return api.ExecResult{}, errNoAgent
		}
		output := runOutput{&seen, func(b []byte) bool { return r.history.AppendOutput(run, b) }}
		return r.commands.Exec(ctx, s.Box, api.ExecRequest{Command: s.Command, Dir: s.Folder}, output, output)
	})
	if err != nil && ctx.Err() != nil {
		err = errStopped
	}
	return seen.outcome(res, err)
}

// Skip implements [Runner].
func (r *runner) Skip(s store.Schedule) {
	_, _, _ = r.history.Do(context.Background(), s.Box, jobOf(s), func(context.Context, *history.Run) (api.ExecResult, error) {
		return api.ExecResult{}, history.ErrSkipped
	})
}

func jobOf(s store.Schedule) history.Job {
	job := history.Job{Type: history.Shell, Prompt: strings.Join(s.Command, " "), Timeout: s.Timeout, Schedule: s.ID}
	if s.Type == schedules.TypePrompt {
		job.Type, job.Prompt, job.Model = history.Agent, s.Prompt, s.Model
	}
	if job.Timeout == 0 {
		job.Timeout = defaultRun
	}
	return job
}

// result collects the beginning of a run's output, stdout and stderr together.
type result struct {
	mu        sync.Mutex
	output    []byte
	truncated bool // the output was truncated
}

// outcome returns the outcome of a run, with the error in the API's wording.
func (r *result) outcome(res api.ExecResult, err error) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Outcome{Status: Failed, Output: strings.ToValidUTF8(string(r.output), "\uFFFD"), Truncated: r.truncated}
	if err != nil {
		_, body := problem.StatusOf(err)
		out.Error = body.Error
		return out
	}
	out.ExitCode = &res.ExitCode
	if res.ExitCode == 0 {
		out.Status = Completed
	}
	return out
}

// runOutput passes a run's output to the result and the history.
type runOutput struct {
	result  *result
	history func([]byte) (full bool)
}

// Write implements [io.Writer]. It fails once both are full.
func (w runOutput) Write(b []byte) (int, error) {
	full := w.history(b)
	r := w.result
	r.mu.Lock()
	defer r.mu.Unlock()
	room := mostResult - len(r.output)
	r.output = append(r.output, b[:min(room, len(b))]...)
	if r.truncated = r.truncated || len(b) > room; r.truncated && full {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}
