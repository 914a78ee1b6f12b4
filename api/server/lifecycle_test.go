package server

import (
	"net/http"
	"testing"

	"boxgate/api/apitest"
)

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
			got := f.Call(t, step.method, path, step.body)
			if got.StatusCode != step.status || got.JSON(t)["init_command"] != step.command {
				t.Errorf("%s %s: %s: %s", step.method, step.body, got.Status, got.Text)
			}
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{"name":"sleeper"}`)
	for _, step := range []struct{ call, status string }{{"pause", "paused"}, {"resume", "idle"}} {
		for _, got := range []apitest.Answer{f.Call(t, "POST", "/v2/box/sleeper/"+step.call, ""), f.Call(t, "GET", "/v2/box/"+id+"/status", "")} {
			if got.StatusCode != http.StatusOK || got.JSON(t)["status"] != step.status {
				t.Errorf("%s: %s: %s", step.call, got.Status, got.Text)
			}
		}
	}
	if got := f.Call(t, "POST", "/v2/box/nobody/pause", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("of an unknown box: %s: %s", got.Status, got.Text)
	}
}
