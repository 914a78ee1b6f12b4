package settings_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/settings"
)

// fixture serves the endpoints of this package.
type fixture struct {
	*apitest.Served
	host    *apitest.Host
	history *history.History
}

// serve serves the endpoints until the test ends.
func serve(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), history: history.New(nil)}
	f.Served = apitest.Serve(t, f.host, (&settings.Endpoints{Boxes: f.host, Host: f.host, Rules: f.host, Headers: f.host, History: f.history, Bodies: apitest.Bodies}).Routes())
	return f
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	f := serve(t)
	const env = "/v2/box/settings/env"
	f.Expect(t, 200, "GET", env, "", `{"env_vars":{}}`)
	f.Expect(t, 200, "PUT", env, `{"env_vars":{"A":"sk-a","B":""}}`, `"A":"****"`, `"B":"****"`)
	f.Expect(t, 200, "PUT", env+"/C", `{"value":""}`)
	f.Expect(t, 200, "PUT", env+"/A", `{"value":"sk-other"}`)
	if got := f.Expect(t, 200, "GET", env, "", `"A":"****"`, `"C":"****"`); strings.Contains(got.Text, "sk-") {
		t.Errorf("a value is shown: %s", got.Text)
	}
	if f.host.Env["A"].Reveal() != "sk-other" {
		t.Error("the value was not set")
	}
	f.Expect(t, 200, "DELETE", env+"/C", "")
	f.Expect(t, 404, "DELETE", env+"/C", "", "C")
	for body, words := range map[string]string{
		`{}`: "/env_vars", `{"env_vars":{"1A":""}}`: "/env_vars/1A", `{"env_vars":{"A":"\u0000"}}`: "NUL", `{"env_vars":{"A":1}}`: "/env_vars/A", `{"vars":{}}`: "/vars",
		`{"env_vars":{"A":"` + strings.Repeat("x", api.MaxArgument) + `"}}`: "the limit is",
	} {
		f.Expect(t, 422, "PUT", env, body, words)
	}
	f.Expect(t, 422, "PUT", env+"/MY%20KEY%2FSLASH", `{"value":"v"}`, "letters, digits")
	f.Expect(t, 422, "PUT", env+"/A", `{}`, "/value")
	f.Expect(t, 422, "PUT", env+"/A", `{"value":"\u0000"}`, "/value")
	f.Expect(t, 200, "PUT", env, `{"env_vars":{}}`, `{"env_vars":{}}`)
}

func TestLabels(t *testing.T) {
	t.Parallel()
	f := serve(t)
	labels := "/v2/box/" + f.host.Add(t, api.CreateRequest{Labels: []string{"one"}}) + "/config/labels"
	f.Expect(t, 200, "POST", labels, `{"label":"env:prod"}`, `"labels":["one","env:prod"]`)
	f.Expect(t, 409, "POST", labels, `{"label":"one"}`, "already")
	f.Expect(t, 200, "POST", labels, `{"label":"team=x"}`, `"labels":["one","env:prod","team=x"]`)
	f.Expect(t, 200, "DELETE", labels+"/team=x", "", `"labels":["one","env:prod"]`)
	for _, bad := range []string{`{"label":"has space"}`, `{"label":""}`, `{}`, `{"label":"` + strings.Repeat("x", 21) + `"}`} {
		f.Expect(t, 422, "POST", labels, bad, "/label")
	}
	for _, l := range []string{"three", "four", "five"} {
		f.Expect(t, 200, "POST", labels, `{"label":"`+l+`"}`)
	}
	f.Expect(t, 422, "POST", labels, `{"label":"six"}`, "limit")
	f.Expect(t, 200, "DELETE", labels+"/env%3Aprod", "", `"labels":["one","three","four","five"]`)
	f.Expect(t, 404, "DELETE", labels+"/missing", "", "missing")
	f.Expect(t, 404, "POST", "/v2/box/nobody/config/labels", `{"label":"x"}`)
	if got := f.host.ByID["box1"].Labels; !slices.Equal(got, []string{"one", "three", "four", "five"}) {
		t.Errorf("the box has the labels %q", got)
	}
}

func TestModelAndCustomRunner(t *testing.T) {
	t.Parallel()
	f := serve(t)
	plain := "/v2/box/" + f.host.Add(t, api.CreateRequest{})
	f.Expect(t, 200, "PUT", plain+"/config/model", `{"model":"anthropic/claude-haiku-4-5"}`)
	if got := f.host.ByID["box1"].Hosted.Model; got != "anthropic/claude-haiku-4-5" {
		t.Errorf("the box has the model %q", got)
	}
	f.Expect(t, 422, "PUT", plain+"/config/model", `{}`, "/model")
	const runner = `{"custom_runner":{"command":"node","args":["x.mjs","--new"],"protocol":"box-sse-v1"}}`
	f.Expect(t, 409, "PUT", plain+"/config/custom-runner", runner, "custom")

	custom := "/v2/box/" + f.host.Add(t, api.CreateRequest{Hosted: api.Hosted{Agent: api.AgentCustom, Model: "custom", CustomRunner: &api.CustomRunner{Command: "node", Args: []string{"x.mjs"}}}})
	f.Expect(t, 200, "PUT", custom+"/config/custom-runner", runner)
	if got := f.host.ByID["box2"].Hosted; got.Agent != api.AgentCustom || !slices.Equal(got.CustomRunner.Args, []string{"x.mjs", "--new"}) {
		t.Errorf("the box has %+v", got)
	}
	for body, at := range map[string]string{
		`{}`: "/custom_runner", `{"custom_runner":{"command":""}}`: "/custom_runner/command", `{"custom_runner":{"command":"a","protocol":"x"}}`: "/custom_runner/protocol",
		`{"custom_runner":{"command":"a","args":["\u0000"]}}`: "/custom_runner/args/0", `{"custom_runner":{"command":"a","shell":"b"}}`: "/custom_runner/shell",
	} {
		f.Expect(t, 422, "PUT", custom+"/config/custom-runner", body, at)
	}
}

func TestSkills(t *testing.T) {
	t.Parallel()
	f := serve(t)
	box := "/v2/box/" + f.host.Add(t, api.CreateRequest{Hosted: api.Hosted{Skills: []string{"upstash/workflow-js"}}})
	f.Expect(t, 200, "POST", box+"/config/skills", `{"skill_id":"upstash/qstash-js/qstash-js"}`)
	if got := f.host.ByID["box1"].Hosted.Skills; !slices.Equal(got, []string{"upstash/workflow-js", "upstash/qstash-js/qstash-js"}) {
		t.Errorf("the box has the skills %q", got)
	}
	f.Expect(t, 409, "POST", box+"/config/skills", `{"skill_id":"upstash/qstash-js/qstash-js"}`, "already")
	for _, bad := range []string{"", "one", "a/b/c/d", "a//b", "a/b c", "../../x/../y"} {
		f.Expect(t, 422, "POST", box+"/config/skills", `{"skill_id":"`+bad+`"}`, "/skill_id")
	}
	f.Expect(t, 200, "DELETE", box+"/config/skills/upstash/qstash-js/qstash-js", "", `"enabled_skills":["upstash/workflow-js"]`)
	f.Expect(t, 404, "DELETE", box+"/config/skills/upstash/qstash-js/qstash-js", "")
	f.Expect(t, 200, "DELETE", box+"/config/skills/upstash/workflow-js", "", `"enabled_skills":[]`)
}

// Source addresses must be possible addresses of a host. The response contains the active ones.
func TestSourceAddresses(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.host.Add(t, api.CreateRequest{}) + "/config/source-addresses"
	f.Expect(t, 200, "PUT", path, `{"source_addresses":["203.0.113.7","2001:db8::7"]}`, `"source_addresses":["203.0.113.7","2001:db8::7"]`)
	for _, bad := range []string{`["203.0.113.7","203.0.113.8"]`, `["127.0.0.1"]`, `["203.0.113.0/24"]`, `["web-1"]`} {
		f.Expect(t, 422, "PUT", path, `{"source_addresses":`+bad+`}`, "/source_addresses")
	}
	if got := f.host.ByID["box1"].Source.Addrs(); len(got) != 2 {
		t.Errorf("the box has %v", got)
	}
	f.Expect(t, 200, "PUT", path, `{"source_addresses":[]}`, `"source_addresses":[]`)
}

// TestChangesOfSettings: neither the trail nor the log of the box contains the value of a variable. Failed calls and
// reads are not recorded as changes.
func TestChangesOfSettings(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.host.Add(t, api.CreateRequest{Hosted: api.Hosted{Agent: api.AgentCustom, Skills: []string{"a/b"}}})
	for _, rt := range (&settings.Endpoints{}).Routes() {
		path := strings.NewReplacer("{id}", "box1", "{key}", "LOG_LEVEL", "{label}", "team-a", "{owner}", "owner", "{repository}", "repository", "{skill}", "skill").Replace(rt.Path)
		before := len(f.Changes())
		body := strings.ReplaceAll(rt.Example, "info", "sk-value")
		got := f.Call(t, rt.Method, path, body)
		if got.StatusCode != 200 && got.StatusCode != 404 {
			t.Errorf("%s: %s %s", rt.ID, got.Status, got.Text)
		}
		if made := len(f.Changes()) - before; made != 0 && (rt.Method == "GET" || got.StatusCode != 200) {
			t.Errorf("%s: %s, with %d changes in the trail", rt.ID, got.Status, made)
		}
		if strings.Contains(rt.Path, "{id}") {
			f.Expect(t, 404, rt.Method, strings.Replace(path, "box1", "nobody", 1), body)
		}
	}
	if all := fmt.Sprint(f.Changes(), f.history.Logs("box1", 0, 100)); strings.Contains(all, "sk-value") {
		t.Errorf("a value is in the trail or the log: %s", all)
	}
	f.host.Fail = errors.New("bolt: locked")
	for _, rt := range (&settings.Endpoints{}).Routes() {
		path := strings.NewReplacer("{id}", "box1", "{key}", "LOG_LEVEL", "{label}", "team-a", "{owner}", "owner", "{repository}", "repository", "{skill}", "skill").Replace(rt.Path)
		if got := f.Call(t, rt.Method, path, rt.Example); got.StatusCode != 500 || strings.Contains(got.Text, "bolt") {
			t.Errorf("%s of a host that fails: %s %s", rt.ID, got.Status, got.Text)
		}
	}
}
