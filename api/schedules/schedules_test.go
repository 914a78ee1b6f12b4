package schedules_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/schedules"
)

// serve serves the endpoints of this package and creates a box.
func serve(t *testing.T) (*apitest.Served, string) {
	t.Helper()
	host := apitest.NewHost(t)
	f := apitest.Serve(t, host, (&schedules.Endpoints{Boxes: host, Host: host, History: history.New(nil), Bodies: apitest.Bodies}).Routes())
	return f, host.Add(t, api.CreateRequest{})
}

// Bodies are as in the SDK, and a created schedule is listed unchanged.
func TestSchedules(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	all := "/v2/box/" + id + "/schedules"
	f.Expect(t, 200, "GET", all, "", "[]")
	made := f.Expect(t, 201, "POST", all, `{"type":"exec","cron":"*/5 * * * *","command":["bash","-c","echo hello"],"folder":"/workspace/home",
		"webhook_url":"https://example.com/webhook","webhook_headers":{"Authorization":"Bearer token"}}`,
		`"type":"exec"`, `"status":"active"`, `"folder":"/workspace/home"`, `"command":["bash","-c","echo hello"]`, `"webhook_headers":{"Authorization":"Bearer token"}`).JSON(t)
	var list []map[string]any
	if err := json.Unmarshal([]byte(f.Call(t, "GET", all, "").Text), &list); err != nil || len(list) != 1 || !cmp.Equal(list[0], made) {
		t.Errorf("%v: %s", err, cmp.Diff(list, []map[string]any{made}))
	}
	one := all + "/" + made["id"].(string)
	f.Expect(t, 200, "POST", one+"/pause", "", `"status":"paused"`)
	f.Expect(t, 200, "GET", one, "", `"status":"paused"`)
	f.Expect(t, 200, "POST", one+"/resume", "", `"status":"active"`)
	f.Expect(t, 200, "PATCH", one, `{"cron":"0 9 * * *","folder":"src","timeout":1000}`, `"cron":"0 9 * * *"`, `"folder":"/workspace/home/src"`, `"timeout":1000`, `"echo hello"`)
	if got := f.Expect(t, 200, "PATCH", one, `{"webhook_url":"","webhook_headers":{},"folder":"","timeout":0}`, `"folder":"/workspace/home"`); strings.Contains(got.Text, "webhook") || strings.Contains(got.Text, "timeout") {
		t.Errorf("what was cleared is still there: %s", got.Text)
	}
	prompt := all + "/" + f.Expect(t, 201, "POST", all, `{"type":"prompt","cron":"0 9 * * *","prompt":"Run tests","model":"anthropic/claude-sonnet-4-6","timeout":300000,"agent_options":{"maxTurns":5,"effort":"high"}}`,
		`"agent_options":{"maxTurns":5,"effort":"high"}`, `"timeout":300000`, `"model":"anthropic/claude-sonnet-4-6"`).JSON(t)["id"].(string)
	for _, empty := range []string{"null", "{}"} {
		if got := f.Expect(t, 200, "PATCH", prompt, `{"agent_options":`+empty+`}`); strings.Contains(got.Text, "agent_options") {
			t.Errorf("the options are still there: %s", got.Text)
		}
	}
	f.Expect(t, 200, "DELETE", one, "")
	for _, gone := range []apitest.Answer{f.Call(t, "GET", one, ""), f.Call(t, "DELETE", one, ""), f.Call(t, "POST", one+"/pause", ""), f.Call(t, "PATCH", one, `{}`)} {
		if gone.StatusCode != 404 {
			t.Errorf("a schedule that is gone: %s %s", gone.Status, gone.Text)
		}
	}
}

func TestSchedulesRefused(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	all := "/v2/box/" + id + "/schedules"
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
		f.Expect(t, 422, "POST", all, body, at)
	}
	one := all + "/" + f.Expect(t, 201, "POST", all, `{"type":"exec","cron":"* * * * *","command":["a"]}`).JSON(t)["id"].(string)
	f.Expect(t, 422, "PATCH", one, `{"command":[]}`, "/command")
	f.Expect(t, 422, "PATCH", one, `{"type":"prompt"}`, "/type")
	f.Expect(t, 200, "GET", one, "", `"command":["a"]`)
}
