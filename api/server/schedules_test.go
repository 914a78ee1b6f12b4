package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"boxgate/api"
	"boxgate/api/schedules"
	"boxgate/policy"
)

func (h *memoryHost) Schedules(_ context.Context, box policy.BoxID) ([]schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return nil, err
	}
	return b.schedules, nil
}

func (h *memoryHost) AddSchedule(_ context.Context, box policy.BoxID, spec schedules.Spec) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	now := time.Unix(1_700_000_000, 0)
	s := schedules.Schedule{Spec: spec, ID: fmt.Sprintf("sched_%d", len(b.schedules)+1), Box: box, CreatedAt: now, UpdatedAt: now, NextRunAt: now.Add(time.Minute)}
	b.schedules = append(b.schedules, s)
	return s, nil
}

// schedule changes one schedule.
func (h *memoryHost) schedule(box policy.BoxID, id string, change func(*schedules.Schedule) error) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	for i := range b.schedules {
		if next := b.schedules[i]; next.ID == id {
			err := change(&next)
			if err == nil {
				b.schedules[i] = next
			}
			return next, err
		}
	}
	return schedules.Schedule{}, api.Errorf(api.ErrNotFound, "the box has no such schedule")
}

func (h *memoryHost) ChangeSchedule(_ context.Context, box policy.BoxID, id string, change func(*schedules.Spec) error) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { return change(&s.Spec) })
}

func (h *memoryHost) PauseSchedule(_ context.Context, box policy.BoxID, id string, paused bool) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { s.Paused = paused; return nil })
}

func (h *memoryHost) DeleteSchedule(_ context.Context, box policy.BoxID, id string) error {
	_, err := h.schedule(box, id, func(s *schedules.Schedule) error { s.ID = ""; return nil })
	return err
}

// The bodies are those of the SDK: what is made is what is listed.
func TestSchedules(t *testing.T) {
	t.Parallel()
	f := serve(t)
	all := "/v2/box/" + f.create(t, `{}`) + "/schedules"
	f.expect(t, 200, "GET", all, "", "[]")
	made := f.expect(t, 201, "POST", all, `{"type":"exec","cron":"*/5 * * * *","command":["bash","-c","echo hello"],"folder":"/workspace/home",
		"webhook_url":"https://example.com/webhook","webhook_headers":{"Authorization":"Bearer token"}}`,
		`"type":"exec"`, `"status":"active"`, `"folder":"/workspace/home"`, `"command":["bash","-c","echo hello"]`, `"webhook_headers":{"Authorization":"Bearer token"}`).json(t)
	var list []map[string]any
	if err := json.Unmarshal([]byte(f.call(t, "GET", all, "").text), &list); err != nil || len(list) != 1 || !cmp.Equal(list[0], made) {
		t.Errorf("%v: %s", err, cmp.Diff(list, []map[string]any{made}))
	}
	one := all + "/" + made["id"].(string)
	f.expect(t, 200, "POST", one+"/pause", "", `"status":"paused"`)
	f.expect(t, 200, "GET", one, "", `"status":"paused"`)
	f.expect(t, 200, "POST", one+"/resume", "", `"status":"active"`)
	f.expect(t, 200, "PATCH", one, `{"cron":"0 9 * * *","folder":"src","timeout":1000}`, `"cron":"0 9 * * *"`, `"folder":"/workspace/home/src"`, `"timeout":1000`, `"echo hello"`)
	if got := f.expect(t, 200, "PATCH", one, `{"webhook_url":"","webhook_headers":{},"folder":"","timeout":0}`, `"folder":"/workspace/home"`); strings.Contains(got.text, "webhook") || strings.Contains(got.text, "timeout") {
		t.Errorf("what was cleared is still there: %s", got.text)
	}
	prompt := all + "/" + f.expect(t, 201, "POST", all, `{"type":"prompt","cron":"0 9 * * *","prompt":"Run tests","model":"anthropic/claude-sonnet-4-6","timeout":300000,"agent_options":{"maxTurns":5,"effort":"high"}}`,
		`"agent_options":{"maxTurns":5,"effort":"high"}`, `"timeout":300000`, `"model":"anthropic/claude-sonnet-4-6"`).json(t)["id"].(string)
	for _, empty := range []string{"null", "{}"} {
		if got := f.expect(t, 200, "PATCH", prompt, `{"agent_options":`+empty+`}`); strings.Contains(got.text, "agent_options") {
			t.Errorf("the options are still there: %s", got.text)
		}
	}
	f.expect(t, 200, "DELETE", one, "")
	for _, gone := range []answer{f.call(t, "GET", one, ""), f.call(t, "DELETE", one, ""), f.call(t, "POST", one+"/pause", ""), f.call(t, "PATCH", one, `{}`)} {
		if gone.StatusCode != 404 {
			t.Errorf("a schedule that is gone: %s %s", gone.Status, gone.text)
		}
	}
}

func TestSchedulesRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	all := "/v2/box/" + f.create(t, `{}`) + "/schedules"
	for body, at := range map[string]string{
		`{"cron":"* * * * *","command":["a"]}`:                                                                "/type",
		`{"type":"agent","cron":"* * * * *"}`:                                                                 "/type",
		`{"type":"exec","cron":"* * * * *"}`:                                                                  "/command",
		`{"type":"exec","cron":"* * * * *","command":["a\u0000"]}`:                                            "/command/0",
		`{"type":"exec","cron":"* * * * *","command":["a"],"prompt":"b"}`:                                     "/prompt",
		`{"type":"exec","cron":"* * * * *","command":["a"],"agent_options":{"a":1}}`:                          "/agent_options",
		`{"type":"exec","cron":"* * * * *","command":["a"],"timeout":-1}`:                                     "/timeout",
		`{"type":"exec","cron":"* * * * *","command":["a"],"webhook_headers":{"A":"b"}}`:                      "/webhook_headers",
		`{"type":"exec","cron":"* * * * *","command":["a"],"webhook_url":"x","webhook_headers":{"Host":"b"}}`: "/webhook_headers/Host",
		`{"type":"exec","cron":"* * * * *","command":["a"],"webhook_url":"x","webhook_headers":{"A":"b\nc"}}`: "/webhook_headers/A",
		`{"type":"exec","cron":"* * * * *","command":["a"],"qstash":"x"}`:                                     "/qstash",
		`{"type":"prompt","cron":"* * * * *"}`:                                                                "/prompt",
		`{"type":"prompt","cron":"* * * * *","prompt":"a","command":["b"]}`:                                   "/command",
		`{"type":"prompt","cron":"* * * * *","prompt":"a","agent_options":[]}`:                                "/agent_options",
	} {
		f.expect(t, 422, "POST", all, body, at)
	}
	one := all + "/" + f.expect(t, 201, "POST", all, `{"type":"exec","cron":"* * * * *","command":["a"]}`).json(t)["id"].(string)
	f.expect(t, 422, "PATCH", one, `{"command":[]}`, "/command")
	f.expect(t, 422, "PATCH", one, `{"type":"prompt"}`, "/type")
	f.expect(t, 200, "GET", one, "", `"command":["a"]`)
}
