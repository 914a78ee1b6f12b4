package schedules

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"boxgate/api/problem"
	"boxgate/api/spec"
	"boxgate/policy/match"
)

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
	Folder         string            `json:"folder,omitempty" doc:"working directory, absolute or below /workspace/home"`
	Model          string            `json:"model,omitempty"`
	AgentOptions   options           `json:"agent_options,omitzero" doc:"an object; for type prompt"`
	Timeout        int64             `json:"timeout,omitempty" doc:"milliseconds after which a run is killed; absent: an hour" max:"604800000"`
	WebhookURL     string            `json:"webhook_url,omitempty" doc:"receives the result of each run, in a request sent as traffic of the box" format:"uri"`
	WebhookHeaders map[string]string `json:"webhook_headers,omitempty" doc:"returned in responses, so put secrets into header rules instead"`
}

func (b *scheduleBody) spec() (Spec, error) {
	var p problem.List
	s := Spec{
		Type: b.Type, Cron: b.Cron, TimeZone: b.TimeZone, Command: b.Command, Prompt: b.Prompt, Folder: spec.Folder(&p, "/folder", b.Folder),
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
func (b *scheduleChangeBody) apply(s *Spec) error {
	var p problem.List
	replace(&s.Cron, b.Cron)
	replace(&s.TimeZone, b.TimeZone)
	replace(&s.Command, b.Command)
	replace(&s.Prompt, b.Prompt)
	replace(&s.Model, b.Model)
	replace(&s.WebhookURL, b.WebhookURL)
	replace(&s.WebhookHeaders, b.WebhookHeaders)
	if b.Folder != nil {
		s.Folder = spec.Folder(&p, "/folder", *b.Folder)
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
