package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/api/harness"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/schedules"
	"boxgate/host/change"
	"boxgate/host/keys"
	"boxgate/host/state"
	"boxgate/host/webhook"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/proxy"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Commands runs commands in boxes.
type Commands interface {
	Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error)
}

// Agents runs the agents of boxes.
type Agents interface {
	// Run runs the agent of a box as the given run of its history, and returns its answer. A box without an agent is
	// [harness.ErrNone].
	Run(ctx context.Context, box api.Box, run *history.Run, t harness.Task) (history.Answer, api.ExecResult, error)
}

// Authorities provides the interception CAs of boxes in PEM.
type Authorities interface {
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
}

// Config configures a [Service].
type Config struct {
	Log         *zap.Logger
	Store       store.Schedules
	Boxes       *state.Table
	Commands    Commands
	Agents      Agents
	History     *history.History
	Authorities Authorities
	Proxy       *proxy.Proxy
	Roots       *x509.CertPool // trusted for webhooks
	Holdings    *keys.Holdings
}

// Service manages the schedules of boxes and runs them. Safe for concurrent use.
type Service struct {
	config    Config
	scheduler *Scheduler
}

// New returns the service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	s := &Service{config: c}
	webhooks := &Webhooks{Client: s.WebhookClient, Note: s.noteDelivery}
	s.scheduler = &Scheduler{Log: c.Log, Store: c.Store, Runner: &runner{c.Boxes, c.Commands, c.Agents, c.History}, Now: fault.Now, Deliver: webhooks.Deliver}
	return s, nil
}

// Load reads the schedules. Call it after the boxes were recovered.
func (s *Service) Load() error { return s.scheduler.Load() }

// Run runs due schedules until ctx is done.
func (s *Service) Run(ctx context.Context) { s.scheduler.Run(ctx) }

// Forget drops the schedules of a deleted box.
func (s *Service) Forget(id policy.BoxID) { s.scheduler.Forget(id) }

// WebhookClient implements the Host of [boxgate/api/harness]. The client's requests count as the box's own.
func (s *Service) WebhookClient(id policy.BoxID) (*http.Client, error) {
	b, err := s.config.Boxes.Find(id)
	if err != nil {
		return nil, err
	}
	ca, err := s.config.Authorities.CA(context.Background(), id)
	if err != nil {
		return nil, err
	}
	roots := s.config.Roots.Clone()
	roots.AppendCertsFromPEM(ca)
	return webhook.Client(s.config.Proxy, &b.Box, roots), nil
}

func (s *Service) noteDelivery(of store.Schedule, err error) {
	if err != nil {
		s.config.History.Log(of.Box, "error", "system", "the webhook of schedule %s did not get the result: %v", of.ID, err)
		return
	}
	s.config.History.Log(of.Box, "info", "system", "the webhook of schedule %s got the result", of.ID)
}

// Schedules implements the Host of [boxgate/api/schedules].
func (s *Service) Schedules(_ context.Context, id policy.BoxID) ([]schedules.Schedule, error) {
	list, err := s.config.Store.List(id)
	if err != nil {
		return nil, err
	}
	var out []schedules.Schedule
	for _, one := range list {
		out = append(out, scheduleView(one))
	}
	slices.SortFunc(out, func(a, b schedules.Schedule) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

// AddSchedule implements the Host of [boxgate/api/schedules].
func (s *Service) AddSchedule(ctx context.Context, id policy.BoxID, spec schedules.Spec) (schedules.Schedule, error) {
	b, err := s.config.Boxes.Find(id)
	if err != nil {
		return schedules.Schedule{}, err
	}
	if b.Attached != nil {
		return schedules.Schedule{}, state.ErrAttached
	}
	if err := checkSchedule(spec); err != nil {
		return schedules.Schedule{}, err
	}
	if spec.Type == schedules.TypePrompt && agents.RunnerOf(b.View().Hosted) == nil {
		return schedules.Schedule{}, harness.ErrNone
	}
	done, err := s.config.Holdings.Reserve(ctx, quotas.Schedules, 1)
	if err != nil {
		return schedules.Schedule{}, err
	}
	defer done()
	made := store.Schedule{ID: "sched_" + strings.ToLower(rand.Text()), Box: id, CreatedBy: keys.CreatorOf(ctx)}
	writeSchedule(&made, spec)
	made, err = s.scheduler.Add(made)
	return scheduleView(made), s.apiError(err)
}

// ChangeSchedule implements the Host of [boxgate/api/schedules].
func (s *Service) ChangeSchedule(_ context.Context, box policy.BoxID, id string, change func(*schedules.Spec) error) (schedules.Schedule, error) {
	return s.changeSchedule(box, id, func(now *store.Schedule) error {
		spec := scheduleView(*now).Spec
		if err := change(&spec); err != nil {
			return err
		}
		if err := checkSchedule(spec); err != nil {
			return err
		}
		writeSchedule(now, spec)
		return nil
	})
}

// PauseSchedule implements the Host of [boxgate/api/schedules].
func (s *Service) PauseSchedule(_ context.Context, box policy.BoxID, id string, paused bool) (schedules.Schedule, error) {
	return s.changeSchedule(box, id, func(now *store.Schedule) error {
		now.Paused = paused
		return nil
	})
}

func (s *Service) changeSchedule(box policy.BoxID, id string, change func(*store.Schedule) error) (schedules.Schedule, error) {
	changed, err := s.scheduler.Change(box, id, change)
	return scheduleView(changed), s.apiError(err)
}

// DeleteSchedule implements the Host of [boxgate/api/schedules].
func (s *Service) DeleteSchedule(_ context.Context, box policy.BoxID, id string) error {
	return s.apiError(s.scheduler.Delete(box, id))
}

// apiError converts the error of a schedule change to an API error.
func (s *Service) apiError(err error) error {
	refused := (*document.InvalidError)(nil)
	switch {
	case err == nil, errors.As(err, &refused):
		return err
	case errors.Is(err, store.ErrNotFound):
		return api.Errorf(api.ErrNotFound, "the box has no such schedule")
	case errors.Is(err, store.ErrTooMany):
		return api.Errorf(api.ErrLimit, "the box has %d schedules, which is the limit; delete one", Most)
	}
	return change.NotStored(s.config.Log, "the schedule could not be stored", err)
}

// checkSchedule reports mistakes in a schedule's specification.
func checkSchedule(s schedules.Spec) error {
	var problems []document.Problem
	if _, err := Parse(s.Cron, s.TimeZone); err != nil {
		at := "/cron"
		if IsZoneError(err) {
			at = "/time_zone"
		}
		problems = append(problems, document.Problem{Pointer: at, Message: err.Error()})
	}
	if s.WebhookURL != "" {
		if err := CheckURL(s.WebhookURL); err != nil {
			problems = append(problems, document.Problem{Pointer: "/webhook_url", Message: err.Error()})
		}
	}
	if problems != nil {
		return &document.InvalidError{Problems: problems}
	}
	return nil
}

// writeSchedule copies a specification into a stored schedule.
func writeSchedule(to *store.Schedule, s schedules.Spec) {
	to.Type, to.Cron, to.TimeZone, to.Command, to.Prompt, to.Folder = s.Type, s.Cron, s.TimeZone, s.Command, s.Prompt, s.Folder
	to.Model, to.AgentOptions, to.Timeout = s.Model, s.AgentOptions, s.Timeout
	to.WebhookURL, to.WebhookHeaders = s.WebhookURL, s.WebhookHeaders
}

func scheduleView(s store.Schedule) schedules.Schedule {
	return schedules.Schedule{
		Spec: schedules.Spec{
			Type: s.Type, Cron: s.Cron, TimeZone: s.TimeZone, Command: s.Command, Prompt: s.Prompt, Folder: s.Folder, Model: s.Model,
			AgentOptions: s.AgentOptions, Timeout: s.Timeout, WebhookURL: s.WebhookURL, WebhookHeaders: s.WebhookHeaders,
		},
		ID: s.ID, Box: s.Box, Paused: s.Paused, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, NextRunAt: Next(s),
		LastRunAt: s.LastRunAt, LastRunStatus: s.LastRunStatus, LastRunID: s.LastRunID, LastError: s.LastError,
		Runs: s.Runs, Failures: s.Failures,
	}
}

const (
	defaultRun = time.Hour // for a schedule without a timeout
	mostResult = 64 << 10  // maximum output in a webhook's payload, in bytes
)

// errStopped is the error of runs that were interrupted because the gateway stopped.
var errStopped = api.Errorf(api.ErrUnavailable, "the gateway was stopped during the run")

// runner runs schedules as ordinary commands and agents, recorded in the history of the box.
type runner struct {
	boxes    *state.Table
	commands Commands
	agents   Agents
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
			return r.runAgent(ctx, s, run, &seen)
		}
		output := runOutput{&seen, func(b []byte) bool { return r.history.AppendOutput(run, b) }}
		return r.commands.Exec(ctx, s.Box, api.ExecRequest{Command: s.Command, Dir: s.Folder}, output, output)
	})
	if err != nil && ctx.Err() != nil {
		err = errStopped
	}
	return seen.outcome(res, err)
}

// runAgent runs the agent of a box. Its answer is the output of the run.
func (r *runner) runAgent(ctx context.Context, s store.Schedule, run *history.Run, seen *result) (api.ExecResult, error) {
	b, err := r.boxes.Find(s.Box)
	if err != nil {
		return api.ExecResult{}, err
	}
	answer, res, err := r.agents.Run(ctx, b.View(), run, harness.Task{Prompt: s.Prompt, Folder: s.Folder, Model: s.Model, Options: s.AgentOptions})
	seen.set(answer)
	return res, err
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
	answer    *history.Answer
}

// set takes over the answer of an agent.
func (r *result) set(answer history.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer, r.output = &answer, []byte(answer.Output)
	if r.truncated = len(r.output) > mostResult; r.truncated {
		r.output = r.output[:mostResult]
	}
}

// outcome returns the outcome of a run, with the error in the API's wording.
func (r *result) outcome(res api.ExecResult, err error) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Outcome{Status: Failed, Output: strings.ToValidUTF8(string(r.output), "\uFFFD"), Truncated: r.truncated, Answer: r.answer}
	if err != nil {
		_, body := problem.StatusOf(err)
		out.Error = body.Error
		return out
	}
	if r.answer == nil {
		out.ExitCode = &res.ExitCode
	}
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
