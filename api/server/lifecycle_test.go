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
