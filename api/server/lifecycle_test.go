package server

import (
	"context"
	"net/http"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

func (h *memoryHost) PauseBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusPaused)
}

func (h *memoryHost) ResumeBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusIdle)
}

func (h *memoryHost) setStatus(id policy.BoxID, s api.Status) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	b.Status = s
	return b.Box, nil
}

func (h *memoryHost) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil {
		b.InitCommand = command
	}
	return err
}

func TestInitCommand(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{"keep_alive":true}`)
	for _, path := range []string{"startup", "config/init-command"} {
		path = "/v2/box/" + id + "/" + path
		for _, step := range []struct {
			method, body string
			status       int
			command      any
		}{
			{"GET", "", 200, ""}, {"PUT", `{"init_command":"./run"}`, 200, "./run"}, {"GET", "", 200, "./run"},
			{"PUT", `{"init_command":""}`, 422, nil}, {"PUT", `{}`, 422, nil}, {"PUT", `{"init_command":"a\u0000b"}`, 422, nil},
			{"DELETE", "", 200, ""}, {"GET", "", 200, ""},
		} {
			got := f.call(t, step.method, path, step.body)
			if got.StatusCode != step.status || got.json(t)["init_command"] != step.command {
				t.Errorf("%s %s: %s: %s", step.method, step.body, got.Status, got.text)
			}
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{"name":"sleeper"}`)
	for _, step := range []struct{ call, status string }{{"pause", "paused"}, {"resume", "idle"}} {
		for _, got := range []answer{f.call(t, "POST", "/v2/box/sleeper/"+step.call, ""), f.call(t, "GET", "/v2/box/"+id+"/status", "")} {
			if got.StatusCode != http.StatusOK || got.json(t)["status"] != step.status {
				t.Errorf("%s: %s: %s", step.call, got.Status, got.text)
			}
		}
	}
	if got := f.call(t, "POST", "/v2/box/nobody/pause", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("of an unknown box: %s: %s", got.Status, got.text)
	}
}
