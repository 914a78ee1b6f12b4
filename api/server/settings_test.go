package server

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
)

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
	labels := "/v2/box/" + f.create(t, `{"labels":["one"]}`) + "/config/labels"
	f.Expect(t, 200, "POST", labels, `{"label":"env:prod"}`, `"labels":["one","env:prod"]`)
	f.Expect(t, 409, "POST", labels, `{"label":"one"}`, "already")
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
	f.Expect(t, 200, "GET", "/v2/box?label=three", "", `"three"`)
}

func TestModelAndCustomRunner(t *testing.T) {
	t.Parallel()
	f := serve(t)
	plain := "/v2/box/" + f.create(t, `{}`)
	f.Expect(t, 200, "PUT", plain+"/config/model", `{"model":"anthropic/claude-haiku-4-5"}`)
	f.Expect(t, 200, "GET", plain, "", `"model":"anthropic/claude-haiku-4-5"`)
	f.Expect(t, 422, "PUT", plain+"/config/model", `{}`, "/model")
	const runner = `{"custom_runner":{"command":"node","args":["x.mjs","--new"],"protocol":"box-sse-v1"}}`
	f.Expect(t, 409, "PUT", plain+"/config/custom-runner", runner, "custom")

	custom := "/v2/box/" + f.create(t, `{"agent":"custom","model":"custom","custom_runner":{"command":"node","args":["x.mjs"]}}`)
	f.Expect(t, 200, "PUT", custom+"/config/custom-runner", runner)
	f.Expect(t, 200, "GET", custom, "", `"args":["x.mjs","--new"]`, `"agent":"custom"`)
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
	box := "/v2/box/" + f.create(t, `{"skills":["upstash/workflow-js"]}`)
	f.Expect(t, 200, "POST", box+"/config/skills", `{"skill_id":"upstash/qstash-js/qstash-js"}`)
	f.Expect(t, 200, "GET", box, "", `"enabled_skills":["upstash/workflow-js","upstash/qstash-js/qstash-js"]`)
	f.Expect(t, 409, "POST", box+"/config/skills", `{"skill_id":"upstash/qstash-js/qstash-js"}`, "already")
	for _, bad := range []string{"", "one", "a/b/c/d", "a//b", "a/b c", "../../x/../y"} {
		f.Expect(t, 422, "POST", box+"/config/skills", `{"skill_id":"`+bad+`"}`, "/skill_id")
	}
	f.Expect(t, 200, "DELETE", box+"/config/skills/upstash/qstash-js/qstash-js", "", `"enabled_skills":["upstash/workflow-js"]`)
	f.Expect(t, 404, "DELETE", box+"/config/skills/upstash/qstash-js/qstash-js", "")
	f.Expect(t, 200, "DELETE", box+"/config/skills/upstash/workflow-js", "", `"enabled_skills":[]`)
}

// Source addresses are set and shown by admin keys; what cannot be one is refused with a pointer, and other keys get a 403, also
// with a new box.
func TestSourceAddressesOfABox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	const path = "/v2/box/box1/config/source-addresses"
	f.Expect(t, 200, "PUT", path, `{"source_addresses":["203.0.113.7","2001:db8::7"]}`, "203.0.113.7", "2001:db8::7")
	f.Expect(t, 200, "GET", "/v2/box/box1", "", `"source_addresses":["203.0.113.7","2001:db8::7"]`)
	for _, bad := range []string{`["203.0.113.7","203.0.113.8"]`, `["127.0.0.1"]`, `["203.0.113.0/24"]`, `["web-1"]`} {
		f.Expect(t, 422, "PUT", path, `{"source_addresses":`+bad+`}`, "/source_addresses")
		f.Expect(t, 422, "POST", "/v2/box", `{"source_addresses":`+bad+`}`, "/source_addresses")
	}
	f.Expect(t, 200, "PUT", path, `{"source_addresses":[]}`, `"source_addresses":[]`)
	creator := apitest.With(f.key(t, `{"name":"ci","role":"box-creator"}`))
	for _, body := range []string{`{"source_addresses":["203.0.113.7"]}`, `{"snapshot_id":"snap_1","source_addresses":["203.0.113.7"]}`} {
		at := "/v2/box"
		if strings.Contains(body, "snapshot") {
			at += "/from-snapshot"
		}
		if got := f.Call(t, "POST", at, body, creator); got.StatusCode != 403 || !strings.Contains(got.Text, "source_addresses") {
			t.Errorf("%s %s: %s %s", at, body, got.Status, got.Text)
		}
	}
}
