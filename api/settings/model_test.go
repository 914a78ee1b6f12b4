package settings_test

import (
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/rule/header"
)

// A key of a model becomes the header rule of its host, beside the box's other rules. It is in no answer and no log.
func TestKeyOfAModel(t *testing.T) {
	t.Parallel()
	f := serve(t)
	others, err := policy.ParseHeaders(map[string]map[string]string{"api.example.com": {"X": "sk-other"}, "api.anthropic.com": {"X-Api-Key": "sk-old"}})
	if err != nil {
		t.Fatal(err)
	}
	id := f.host.Add(t, api.CreateRequest{Headers: others, Hosted: api.Hosted{Agent: api.AgentCustom, CustomRunner: &api.CustomRunner{Command: "x"}, Session: "c1"}})
	model := "/v2/box/" + id + "/config/model"
	rules := func() string {
		var out []string
		for _, r := range f.host.ByID["box1"].Rules.Rules {
			out = append(out, r.Pattern.String()+" "+header.Of(r.Effects)[0].Literal.Reveal())
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	got := f.Expect(t, 200, "PUT", model, `{"model":"anthropic/m","agent":"claude-code","agent_api_key":"sk-new"}`)
	if strings.Contains(got.Text, "sk-") || rules() != "api.anthropic.com sk-new, api.example.com sk-other" {
		t.Errorf("%s: %s", got.Text, rules())
	}
	if h := f.host.ByID["box1"].Hosted; h.Agent != "claude-code" || h.CustomRunner != nil || h.Session != "" || h.Model != "anthropic/m" {
		t.Errorf("%+v", h)
	}
	f.Expect(t, 200, "PUT", model, `{"model":"openai/m","agent":"codex","agent_base_url":"https://models.example.com:8443/v1","agent_api_key":"sk-own"}`)
	if want := "api.anthropic.com sk-new, api.example.com sk-other, models.example.com:8443 Bearer sk-own"; rules() != want {
		t.Error(rules())
	}
	before := rules()
	f.Expect(t, 200, "PUT", model, `{"model":"openai/n","agent_api_key":"STORED_KEY"}`)
	f.Expect(t, 200, "PUT", model, `{"model":"openai/o","agent_base_url":""}`)
	if h := f.host.ByID["box1"].Hosted; h.BaseURL != "" || h.Model != "openai/o" || h.Agent != "codex" || rules() != before {
		t.Errorf("%+v %s", h, rules())
	}
	for body, at := range map[string]string{
		`{"model":"m","agent":"custom"}`: "/agent", `{"model":"m","agent":"../x"}`: "/agent", `{"model":"m","agent_base_url":"http://models.example.com"}`: "/agent_base_url",
		`{"model":"nowhere/m","agent_api_key":"sk-x"}`: "/model", `{"model":"openai/m","agent_api_key":"sk-\r\nX: y"}`: "/agent_api_key",
		`{"model":"openai/m","agent_api_key":"sk-x","agent_base_url":"https://10.0.0.1"}`: "/agent_api_key", `{"model":""}`: "/model",
	} {
		if got := f.Expect(t, 422, "PUT", model, body, at); strings.Contains(got.Text, "sk-") {
			t.Errorf("%s: %s", body, got.Text)
		}
	}
	plain := "/v2/box/" + f.host.Add(t, api.CreateRequest{}) + "/config/model"
	f.Expect(t, 422, "PUT", plain, `{"model":"own","agent_api_key":"sk-x"}`, "/agent_api_key")
	if f.Expect(t, 200, "PUT", plain, `{"model":"openai/m"}`); f.host.ByID["box2"].Hosted.Agent != "codex" {
		t.Errorf("%+v", f.host.ByID["box2"].Hosted)
	}
	if h := f.host.ByID["box1"].Hosted; h.Model != "openai/o" || rules() != before {
		t.Errorf("a refused change has an effect: %+v %s", h, rules())
	}
	for _, line := range f.history.Logs("box1", 0, 100) {
		if strings.Contains(string(line.Message), "sk-") {
			t.Errorf("the log has %q", line.Message)
		}
	}
}
