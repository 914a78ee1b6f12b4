// Package schedules serves the schedules of boxes: commands and prompts that run repeatedly.
package schedules

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/policy/match"
)

// The types of schedules.
const (
	TypeExec   = "exec"   // a command
	TypePrompt = "prompt" // a prompt for an agent
)

// Spec is the definition of a schedule.
type Spec struct {
	Type           string // TypeExec or TypePrompt; immutable
	Cron, TimeZone string
	Command        []string // for TypeExec
	Prompt         string   // for TypePrompt
	Folder         string   // absolute
	Model          string
	AgentOptions   json.RawMessage // an object, or nil
	Timeout        time.Duration   // 0: the host's default
	WebhookURL     string          // may be empty
	WebhookHeaders map[string]string
}

// Schedule is a schedule with its history. Times that do not apply are zero.
type Schedule struct {
	Spec
	ID                   string
	Box                  policy.BoxID
	Paused               bool
	CreatedAt, UpdatedAt time.Time
	NextRunAt, LastRunAt time.Time
	LastRunStatus        string
	LastRunID            string
	LastError            string
	Runs, Failures       int64
}

// Host stores and runs the schedules. Errors are as in package api; an invalid expression or URL is a
// *document.InvalidError.
type Host interface {
	// Schedules lists the schedules of a box, oldest first.
	Schedules(ctx context.Context, box policy.BoxID) ([]Schedule, error)
	// AddSchedule adds a schedule. Beyond the limit it returns an ErrLimit. For an attached box, which cannot run
	// commands, it returns an ErrConflict.
	AddSchedule(ctx context.Context, box policy.BoxID, s Spec) (Schedule, error)
	// ChangeSchedule changes a schedule. If change returns an error, the schedule stays as it was.
	ChangeSchedule(ctx context.Context, box policy.BoxID, id string, change func(*Spec) error) (Schedule, error)
	// PauseSchedule pauses or resumes a schedule. Runs that were due during the pause are skipped.
	PauseSchedule(ctx context.Context, box policy.BoxID, id string, paused bool) (Schedule, error)
	// DeleteSchedule deletes a schedule. A run in progress continues.
	DeleteSchedule(ctx context.Context, box policy.BoxID, id string) error
}

// Endpoints serves the schedules.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	view := reflect.TypeFor[scheduleView]()
	const all, one = "/v2/box/{id}/schedules", "/v2/box/{id}/schedules/{schedule}"
	return []rest.Route{
		{Method: "POST", Path: all, ID: "addSchedule", Summary: "Schedule a command", Status: 201, Request: reflect.TypeFor[scheduleBody](), Example: `{"type":"exec","cron":"*/5 * * * *","command":["sh","-c","date >> log"]}`, Response: view, Handle: e.add},
		{Method: "GET", Path: all, ID: "listSchedules", Summary: "The schedules of a box, oldest first", Response: reflect.TypeFor[[]scheduleView](), Handle: e.list},
		{Method: "GET", Path: one, ID: "getSchedule", Summary: "One schedule of a box", Response: view, Handle: e.get},
		{Method: "PATCH", Path: one, ID: "changeSchedule", Summary: "Change a schedule; absent fields stay unchanged", Request: reflect.TypeFor[scheduleChangeBody](), Example: `{"cron":"0 9 * * *"}`, Response: view, Handle: e.change},
		{Method: "DELETE", Path: one, ID: "deleteSchedule", Summary: "Delete a schedule; a run in progress continues", Response: reflect.TypeFor[rest.OK](), Handle: e.delete},
		{Method: "POST", Path: one + "/pause", ID: "pauseSchedule", Summary: "Pause a schedule", Response: view, Handle: e.pause},
		{Method: "POST", Path: one + "/resume", ID: "resumeSchedule", Summary: "Resume a schedule; runs that were due in the meantime are skipped", Response: view, Handle: e.resume},
	}
}

func (e *Endpoints) add(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body scheduleBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	s, err := body.spec(box)
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.AddSchedule(r.Context(), box.ID, s)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s added: %s", made.ID, made.Cron)
	return rest.Reply{Status: http.StatusCreated, Body: viewSchedule(made), Change: changed(box, made.ID, "made")}, nil
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	found, err := e.Host.Schedules(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	views := []scheduleView{}
	for _, s := range found {
		views = append(views, viewSchedule(s))
	}
	return rest.Reply{Body: views}, nil
}

func (e *Endpoints) get(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	found, err := e.Host.Schedules(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	id := r.PathValue("schedule")
	i := slices.IndexFunc(found, func(s Schedule) bool { return s.ID == id })
	if i < 0 {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "box %s has no schedule %q", box.ID, problem.Clip(id))
	}
	return rest.Reply{Body: viewSchedule(found[i])}, nil
}

func (e *Endpoints) change(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body scheduleChangeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	return e.edit(r, "changed", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.ChangeSchedule(ctx, box.ID, id, func(s *Spec) error { return body.apply(box, s) })
	})
}

func (e *Endpoints) pause(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.edit(r, "paused", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.PauseSchedule(ctx, box.ID, id, true)
	})
}

func (e *Endpoints) resume(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.edit(r, "resumed", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.PauseSchedule(ctx, box.ID, id, false)
	})
}

// edit changes the schedule in the path of the request.
func (e *Endpoints) edit(r *http.Request, what string, change func(context.Context, api.Box, string) (Schedule, error)) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := change(r.Context(), box, r.PathValue("schedule"))
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s %s", s.ID, what)
	return rest.Reply{Body: viewSchedule(s), Change: changed(box, s.ID, what)}, nil
}

// changed describes a change of a schedule for the audit trail, without its command, which may contain secrets.
func changed(box api.Box, id, how string) *rest.Change {
	return &rest.Change{Box: box.ID, What: map[string]any{"schedule_" + how: id}}
}

func (e *Endpoints) delete(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	id := r.PathValue("schedule")
	if err := e.Host.DeleteSchedule(r.Context(), box.ID, id); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s deleted", id)
	reply := rest.Done()
	reply.Change = changed(box, id, "deleted")
	return reply, nil
}

// The limits of a schedule.
const (
	maxTimeout = 7 * 24 * time.Hour
	maxPrompt  = 64 << 10
	maxOptions = 64 << 10
	maxHeaders = 64
)

// options are the options of an agent: any JSON object.
type options struct{ json.RawMessage }

// Forms describes the type in the OpenAPI document.
func (options) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[map[string]option]()} }

// option is one option of an agent, of any JSON type.
type option struct{}

// Forms describes the usual types in the OpenAPI document.
func (option) Forms() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[string](), reflect.TypeFor[float64](), reflect.TypeFor[bool](), reflect.TypeFor[[]string](), reflect.TypeFor[map[string]string](),
	}
}

// scheduleBody is a new schedule.
type scheduleBody struct {
	Type           string            `json:"type" enum:"exec prompt"`
	Cron           string            `json:"cron" doc:"five fields, or @hourly, @daily, @weekly, @monthly or @yearly; may be preceded by CRON_TZ=Zone" example:"*/5 * * * *"`
	TimeZone       string            `json:"time_zone,omitempty" doc:"name in the IANA database; absent: UTC" example:"Europe/Berlin"`
	Command        []string          `json:"command,omitempty" doc:"program and arguments; for type exec"`
	Prompt         string            `json:"prompt,omitempty" doc:"for type prompt"`
	Folder         string            `json:"folder,omitempty" doc:"working directory, absolute or below the home directory"`
	Model          string            `json:"model,omitempty"`
	AgentOptions   options           `json:"agent_options,omitzero" doc:"an object; for type prompt"`
	Timeout        int64             `json:"timeout,omitempty" doc:"milliseconds after which a run is killed; absent: an hour" max:"604800000"`
	WebhookURL     string            `json:"webhook_url,omitempty" doc:"receives the result of each run, in a request sent as traffic of the box" format:"uri"`
	WebhookHeaders map[string]string `json:"webhook_headers,omitempty" doc:"returned in responses, so put secrets into header rules instead"`
}

func (b *scheduleBody) spec(box api.Box) (Spec, error) {
	var p problem.List
	s := Spec{
		Type: b.Type, Cron: b.Cron, TimeZone: b.TimeZone, Command: b.Command, Prompt: b.Prompt, Folder: spec.Folder(&p, "/folder", box.HomeDir(), b.Folder),
		Model: b.Model, Timeout: milliseconds(&p, b.Timeout), WebhookURL: b.WebhookURL, WebhookHeaders: b.WebhookHeaders,
	}
	s.AgentOptions = b.AgentOptions.object(&p)
	s.check(&p)
	return s, p.Err()
}

// scheduleChangeBody is a change of a schedule. Absent fields stay; an empty value removes an optional field.
type scheduleChangeBody struct {
	Cron           *string            `json:"cron,omitempty"`
	TimeZone       *string            `json:"time_zone,omitempty"`
	Command        *[]string          `json:"command,omitempty"`
	Prompt         *string            `json:"prompt,omitempty"`
	Folder         *string            `json:"folder,omitempty"`
	Model          *string            `json:"model,omitempty"`
	AgentOptions   options            `json:"agent_options,omitzero" doc:"null or {} removes them"`
	Timeout        *int64             `json:"timeout,omitempty" doc:"0: an hour" max:"604800000"`
	WebhookURL     *string            `json:"webhook_url,omitempty"`
	WebhookHeaders *map[string]string `json:"webhook_headers,omitempty"`
}

// apply applies the change and validates the result.
func (b *scheduleChangeBody) apply(box api.Box, s *Spec) error {
	var p problem.List
	replace(&s.Cron, b.Cron)
	replace(&s.TimeZone, b.TimeZone)
	replace(&s.Command, b.Command)
	replace(&s.Prompt, b.Prompt)
	replace(&s.Model, b.Model)
	replace(&s.WebhookURL, b.WebhookURL)
	replace(&s.WebhookHeaders, b.WebhookHeaders)
	if b.Folder != nil {
		s.Folder = spec.Folder(&p, "/folder", box.HomeDir(), *b.Folder)
	}
	if b.Timeout != nil {
		s.Timeout = milliseconds(&p, *b.Timeout)
	}
	if b.AgentOptions.RawMessage != nil {
		s.AgentOptions = b.AgentOptions.object(&p)
	}
	s.check(&p)
	return p.Err()
}

func replace[T any](now *T, given *T) {
	if given != nil {
		*now = *given
	}
}

// check reports mistakes that can be found without the host.
func (s *Spec) check(p *problem.List) {
	switch s.Type {
	case TypeExec:
		spec.Command(p, "/command", s.Command)
		spec.StoredCommand(p, "/command", s.Command)
		unfit(p, "/prompt", s.Prompt != "", s.Type)
		unfit(p, "/agent_options", s.AgentOptions != nil, s.Type)
	case TypePrompt:
		if s.Prompt == "" {
			p.Add("/prompt", "is required")
		}
		unfit(p, "/command", len(s.Command) > 0, s.Type)
	default:
		p.Add("/type", "must be exec or prompt")
	}
	spec.Text(p, "/prompt", s.Prompt, maxPrompt, true)
	spec.Model(p, "/model", s.Model)
	spec.Line(p, "/cron", s.Cron)
	spec.Line(p, "/time_zone", s.TimeZone)
	spec.URL(p, "/webhook_url", s.WebhookURL)
	if len(s.WebhookHeaders) > 0 && s.WebhookURL == "" {
		p.Add("/webhook_headers", "need a webhook_url")
	}
	checkHeaders(p, s.WebhookHeaders)
}

func unfit(p *problem.List, at string, given bool, kind string) {
	if given {
		p.Add(at, "does not fit a schedule of type %s", kind)
	}
}

func checkHeaders(p *problem.List, headers map[string]string) {
	if len(headers) > maxHeaders {
		p.Add("/webhook_headers", "at most %d headers", maxHeaders)
	}
	seen := map[string]bool{}
	for name, value := range headers {
		at := "/webhook_headers/" + problem.EscapeKey(name)
		if err := match.CheckHeaderName(name); err != nil {
			p.Add(at, "%v", err)
		}
		if err := match.CheckHeaderValue(value); err != nil {
			p.Add(at, "%v", err)
		}
		if seen[strings.ToLower(name)] {
			p.Add(at, "this header is given twice")
		}
		seen[strings.ToLower(name)] = true
	}
}

func milliseconds(p *problem.List, n int64) time.Duration {
	if n < 0 || n > maxTimeout.Milliseconds() {
		p.Add("/timeout", "must be between 1 and %d milliseconds", maxTimeout.Milliseconds())
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// object returns the options, or nil if they are empty.
func (o options) object(p *problem.List) json.RawMessage {
	text := bytes.TrimSpace(o.RawMessage)
	switch {
	case len(text) == 0 || string(text) == "null":
		return nil
	case text[0] != '{':
		p.Add("/agent_options", "must be an object")
	case len(text) > maxOptions:
		p.Add("/agent_options", "must be at most %d bytes", maxOptions)
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) == nil && len(members) == 0 {
		return nil
	}
	return text
}

// scheduleView is a schedule in the SDK's format. Times are Unix seconds.
type scheduleView struct {
	ID             string            `json:"id"`
	BoxID          policy.BoxID      `json:"box_id"`
	CustomerID     string            `json:"customer_id"`
	Type           string            `json:"type" enum:"exec prompt"`
	Cron           string            `json:"cron"`
	TimeZone       string            `json:"time_zone,omitempty"`
	Command        []string          `json:"command,omitempty"`
	Prompt         string            `json:"prompt,omitempty"`
	Folder         string            `json:"folder"`
	Model          string            `json:"model,omitempty"`
	AgentOptions   options           `json:"agent_options,omitzero"`
	Timeout        int64             `json:"timeout,omitempty" doc:"milliseconds"`
	Status         string            `json:"status" enum:"active paused"`
	WebhookURL     string            `json:"webhook_url,omitempty"`
	WebhookHeaders map[string]string `json:"webhook_headers,omitempty"`
	NextRunAt      int64             `json:"next_run_at,omitempty"`
	LastRunAt      int64             `json:"last_run_at,omitempty"`
	LastRunStatus  string            `json:"last_run_status,omitempty" doc:"completed, failed or skipped"`
	LastRunID      string            `json:"last_run_id,omitempty"`
	LastError      string            `json:"last_error,omitempty" doc:"why the last run failed, unless the command itself failed"`
	TotalRuns      int64             `json:"total_runs"`
	TotalFailures  int64             `json:"total_failures"`
	CreatedAt      int64             `json:"created_at"`
	UpdatedAt      int64             `json:"updated_at"`
}

func viewSchedule(s Schedule) scheduleView {
	v := scheduleView{
		ID: s.ID, BoxID: s.Box, CustomerID: api.CustomerID, Type: s.Type, Cron: s.Cron, TimeZone: s.TimeZone, Command: s.Command,
		Prompt: s.Prompt, Folder: s.Folder, Model: s.Model, AgentOptions: options{s.AgentOptions}, Timeout: s.Timeout.Milliseconds(),
		Status: "active", WebhookURL: s.WebhookURL, WebhookHeaders: s.WebhookHeaders,
		NextRunAt: max(s.NextRunAt.Unix(), 0), LastRunAt: max(s.LastRunAt.Unix(), 0), LastRunStatus: s.LastRunStatus, LastRunID: s.LastRunID,
		LastError: s.LastError, TotalRuns: s.Runs, TotalFailures: s.Failures, CreatedAt: s.CreatedAt.Unix(), UpdatedAt: s.UpdatedAt.Unix(),
	}
	if s.Paused {
		v.Status = "paused"
	}
	return v
}
