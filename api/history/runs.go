package history

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/stream"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/quota"
)

// ErrCancelled is the cause of a run's context after [History.Cancel].
var ErrCancelled = errors.New("the run was cancelled")

// ErrSkipped is returned by a scheduled run that was due while the previous one was still running.
var ErrSkipped = errors.New("the run before was still going")

// The types of runs.
const (
	Shell = "shell"
	Agent = "agent"
)

// Job describes a run.
type Job struct {
	Type    string // Shell or Agent
	User    string // as in [api.ExecRequest]
	Prompt  string // the command or prompt as the caller wrote it
	Model   string // of an agent
	Timeout time.Duration

	Schedule string // ID of the schedule that caused the run, if any
}

// Run is a running or ended command. History.mu guards all its fields except the ID, which never changes.
type Run struct {
	view     RunView
	exitCode *int
	cancel   context.CancelCauseFunc // nil once ended
	output   []byte                  // the first maxRunOutput bytes
	metered  Metered                 // its requests to models
}

// Metered is the cost of the requests of a run to models, as counted by the gateway.
type Metered struct {
	llm.Usage
	USD llm.Money
}

// InputTokens returns all tokens of requests, cached ones included.
func (m Metered) InputTokens() int64 {
	return int64(min(llm.Add(m.Input, llm.Add(m.CacheRead, m.CacheWrite)), math.MaxInt64))
}

// Charge returns the function that adds the cost of a request, which the box begins now, to a run: of an agent if one runs, or else of a
// command; of several the one that began last. nil: no run.
func (h *History) Charge(box policy.BoxID) func(llm.Usage, llm.Money) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[box]
	if b == nil {
		return nil
	}
	var run *Run
	for _, r := range b.runs {
		if r.cancel != nil && (run == nil || r.view.Type == Agent || run.view.Type != Agent) {
			run = r
		}
	}
	if run == nil {
		return nil
	}
	return func(u llm.Usage, usd llm.Money) {
		h.mu.Lock()
		defer h.mu.Unlock()
		run.metered.Usage, run.metered.USD = run.metered.Plus(u), run.metered.USD.Plus(usd)
	}
}

// MeteredBy returns the cost of the requests of a run to models so far.
func (h *History) MeteredBy(r *Run) Metered {
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.metered
}

// ID returns the ID of the run.
func (r *Run) ID() string { return r.view.ID }

// Text is text from a box. Terminal control characters are escaped in JSON.
type Text string

// MarshalJSON implements [json.Marshaler].
func (t Text) MarshalJSON() ([]byte, error) { return stream.Quote(string(t)), nil }

// RunView is a run in the SDK's format. Times are Unix seconds.
type RunView struct {
	ID             string       `json:"id"`
	BoxID          policy.BoxID `json:"box_id"`
	CustomerID     string       `json:"customer_id"`
	Type           string       `json:"type" enum:"shell agent"`
	Status         string       `json:"status" enum:"running completed failed cancelled skipped"`
	ScheduleID     string       `json:"schedule_id,omitempty" doc:"ID of the schedule that caused the run"`
	User           string       `json:"user,omitempty" doc:"user that the command ran as, as in exec; absent: boxuser"`
	Prompt         string       `json:"prompt" doc:"the command as written, or the prompt"`
	Model          string       `json:"model,omitempty"`
	Output         Text         `json:"output,omitempty" doc:"answer of an agent; for the output of a command, get the run itself"`
	InputTokens    int64        `json:"input_tokens" doc:"as the gateway has counted them; without metered requests as the harness reports them"`
	OutputTokens   int64        `json:"output_tokens"`
	CachedTokens   int64        `json:"cached_input_tokens,omitempty"`
	CostUSD        float64      `json:"cost_usd" doc:"of metered requests to models, by the prices of the configuration"`
	ComputeCostUSD float64      `json:"compute_cost_usd"`
	DurationMS     int64        `json:"duration_ms"`
	CPUNs          int64        `json:"cpu_ns" doc:"CPU time of the command and its descendants, until it ended"`
	ErrorMessage   Text         `json:"error_message,omitempty"`
	SessionID      Text         `json:"session_id,omitempty" doc:"ID of the agent's conversation, chosen by its harness"`
	CreatedAt      int64        `json:"created_at"`
	CompletedAt    int64        `json:"completed_at,omitempty"`

	began time.Time
}

// SchemaName returns the name of the type in the OpenAPI document.
func (RunView) SchemaName() string { return "runView" }

// RunDetail is a run with its output and exit code.
type RunDetail struct {
	RunView
	Output   Text `json:"output" doc:"the beginning of the output, of both streams"`
	ExitCode *int `json:"exit_code,omitempty"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (RunDetail) SchemaName() string { return "runDetail" }

// Answer is the answer of an agent, as its harness reported it.
type Answer struct {
	Output, SessionID                       string
	InputTokens, OutputTokens, CachedTokens int64
}

// Do runs work and records the run. The context of work ends when the timeout passes, ctx ends or the run is cancelled.
// The returned error is the one for the caller of the API.
func (h *History) Do(ctx context.Context, box policy.BoxID, job Job, work func(context.Context, *Run) (api.ExecResult, error)) (*Run, api.ExecResult, error) {
	defer quota.ScopeOf(ctx).Extend()() // the run may outlive its request
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if job.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, job.Timeout)
		defer stop()
	}
	r := h.startRun(box, job, cancel)
	res, err := work(ctx, r)
	status, message := "completed", ""
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, ErrCancelled):
		err = api.Errorf(api.ErrConflict, "%v", ErrCancelled)
		status, message = "cancelled", ErrCancelled.Error()
	case err != nil && errors.Is(cause, context.DeadlineExceeded):
		err = api.Errorf(context.DeadlineExceeded, "the command was killed after its timeout of %v", job.Timeout)
		status, message = "failed", err.Error()
	case errors.Is(err, ErrSkipped):
		status, message = "skipped", err.Error()
	case err != nil && isKeyEnded(cause):
		err = cause
		status, message = "cancelled", cause.Error()
	case err != nil && ctx.Err() != nil:
		status, message = "cancelled", "its session was closed"
	case err != nil:
		_, body := problem.StatusOf(err)
		status, message = "failed", body.Error
	case res.TimedOut:
		status, message = "failed", fmt.Sprintf("the command was killed after its timeout of %v", job.Timeout)
	case res.OutOfMemory:
		status, message = "failed", outOfMemory
	case res.ExitCode != 0:
		status = "failed"
	}
	h.finishRun(r, res, err, status, message)
	return r, res, err
}

// isKeyEnded reports whether a run was killed because the API key that started it is no longer valid.
func isKeyEnded(cause error) bool {
	status, _ := problem.StatusOf(cause)
	return cause != nil && status == http.StatusUnauthorized
}

// outOfMemory is the message of a run whose command was killed by the OOM killer.
const outOfMemory = "it was killed: the box ran out of memory; make a box of a larger size, or use less of /tmp and /dev/shm"

func (h *History) startRun(box policy.BoxID, job Job, cancel context.CancelCauseFunc) *Run {
	now := time.Now()
	r := &Run{cancel: cancel, view: RunView{
		ID: "run_" + strings.ToLower(rand.Text()), BoxID: box, CustomerID: api.CustomerID, Type: job.Type, Status: "running",
		ScheduleID: job.Schedule, Prompt: clip(job.Prompt), Model: job.Model, CreatedAt: now.Unix(), began: now,
	}}
	if job.User != api.BoxUser {
		r.view.User = job.User
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxLocked(box)
	if b == nil {
		return r
	}
	b.runs = append(b.runs, r)
	if len(b.runs) > maxRuns {
		// Keep runs that have not ended, so that they can be cancelled.
		if i := slices.IndexFunc(b.runs, func(r *Run) bool { return r.cancel == nil }); i >= 0 {
			b.runs = slices.Delete(b.runs, i, i+1)
		}
	}
	return r
}

// AppendOutput keeps the beginning of a run's output, and reports whether it is full.
func (h *History) AppendOutput(r *Run, b []byte) (full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := maxRunOutput - len(r.output); room > 0 {
		r.output = append(r.output, b[:min(room, len(b))]...)
	}
	return len(r.output) >= maxRunOutput
}

// SetAnswer records the answer of an agent.
func (h *History) SetAnswer(r *Run, a Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &r.view
	v.Output, v.SessionID = Text(clipTo(a.Output, maxAnswer)), Text(a.SessionID)
	v.InputTokens, v.OutputTokens, v.CachedTokens = a.InputTokens, a.OutputTokens, a.CachedTokens
}

func (h *History) finishRun(r *Run, res api.ExecResult, err error, status, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.cancel = nil
	v := &r.view
	v.Status, v.ErrorMessage = status, Text(message)
	v.CompletedAt = time.Now().Unix()
	v.DurationMS = time.Since(v.began).Milliseconds()
	v.CPUNs = res.CPU.Nanoseconds()
	r.exitCode = exitCode(res, err)
	if h.boxes[v.BoxID] == nil {
		return // the box was deleted in the meantime
	}
	if err != nil {
		h.logLocked(v.BoxID, "error", v.source(), v.Prompt+": "+message)
		return
	}
	if message != "" {
		h.logLocked(v.BoxID, "error", v.source(), v.Prompt+": "+message)
	}
	h.logLocked(v.BoxID, "info", v.source(), fmt.Sprintf("%s: exit %d after %d ms", v.Prompt, res.ExitCode, v.DurationMS))
}

// exitCode returns the exit code of a command that ran to its end, or nil. A harness that failed to answer can still have an exit code
// of its own, which is not 0.
func exitCode(res api.ExecResult, err error) *int {
	if err != nil && res.ExitCode == 0 {
		return nil
	}
	return &res.ExitCode
}

// source returns the source of a log line in the SDK's terms.
func (v *RunView) source() string {
	if v.Type == Agent {
		return "agent"
	}
	return "user"
}

// Runs lists the runs of a box, newest first.
func (h *History) Runs(box policy.BoxID) []RunView {
	h.mu.Lock()
	defer h.mu.Unlock()
	views := []RunView{}
	if b := h.boxes[box]; b != nil {
		for _, r := range slices.Backward(b.runs) {
			views = append(views, r.viewLocked())
		}
	}
	return views
}

func (r *Run) viewLocked() RunView {
	v := r.view
	if r.cancel != nil {
		v.DurationMS = time.Since(v.began).Milliseconds()
	}
	if m := r.metered; m.Usage != (llm.Usage{}) {
		v.InputTokens, v.OutputTokens, v.CachedTokens = m.InputTokens(), int64(m.Output), int64(m.CacheRead)
		v.CostUSD = m.USD.Float()
	}
	return v
}

// Find returns a run of a box.
func (h *History) Find(box policy.BoxID, id string) (RunDetail, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.findLocked(box, id)
	if r == nil {
		return RunDetail{}, false
	}
	d := RunDetail{RunView: r.viewLocked(), ExitCode: r.exitCode}
	if d.Output = d.RunView.Output; r.view.Type == Shell {
		d.Output = Text(strings.ToValidUTF8(string(r.output), "\uFFFD"))
	}
	return d, true
}

func (h *History) findLocked(box policy.BoxID, id string) *Run {
	b := h.boxes[box]
	if b == nil {
		return nil
	}
	i := slices.IndexFunc(b.runs, func(r *Run) bool { return r.view.ID == id })
	if i < 0 {
		return nil
	}
	return b.runs[i]
}

// Cancel kills a running command and returns the run. An ended run is returned unchanged.
func (h *History) Cancel(box policy.BoxID, id string) (RunView, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.findLocked(box, id)
	if r == nil {
		return RunView{}, false
	}
	if r.cancel != nil {
		r.cancel(ErrCancelled)
		r.view.Status = "cancelled"
	}
	return r.viewLocked(), true
}

// clip shortens a caller's text to 1 KiB.
func clip(line string) string { return clipTo(line, 1024) }

func clipTo(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
