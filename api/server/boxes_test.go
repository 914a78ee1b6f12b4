package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/rule/header"
)

// everything is a create request with every field of the dialect, and a secret in every field that may contain one.
const everything = `{
 "name":"web-1","labels":["beta","team:x"],"size":"medium","runtime":"node","keep_alive":true,"init_command":"npm start",
 "model":"anthropic/claude-sonnet-5","agent":"claude-code","agent_api_key":"sk-agent","github_token":"sk-github",
 "git_user_name":"A","git_user_email":"a@example.com","env_vars":{"TOKEN":"sk-env"},"skills":["a/b"],
 "mcp_servers":[{"name":"m","source":"url","package_or_url":"https://mcp.example","headers":{"Authorization":"sk-mcp"}}],
 "attach_headers":{"api.example.com":{"authorization":"Bearer sk-header"},"*.example.org":{"X-Key":"sk-wild"}},
 "network_policy":{"mode":"custom","allowed_domains":["api.example.com"],"denied_cidrs":["192.0.2.0/24"]}}`

func TestCreateIsKeptAndReadBack(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, everything)
	req := f.host.Created[0]
	if req.Name != "web-1" || req.Size != "medium" || req.InitCommand != "npm start" || !req.KeepAlive || req.Env["TOKEN"].Reveal() != "sk-env" {
		t.Errorf("request: %+v", req)
	}
	if req.Policy.Mode != policy.ModeCustom || req.Policy.AllowedDomains[0] != "api.example.com" || len(req.Headers) != 6 {
		t.Errorf("policy %+v, %d header rules", req.Policy, len(req.Headers))
	}
	for host, want := range map[string]string{"api.anthropic.com": "sk-agent", "mcp.example": "sk-mcp"} { // they become header rules
		i := slices.IndexFunc(req.Headers, func(r policy.HeaderRule) bool { return r.Pattern.String() == host })
		if i < 0 || len(req.HostedSecrets) > 0 {
			t.Fatalf("%s: %v, %d secrets beside the rules", host, req.Headers, len(req.HostedSecrets))
		}
		if set := header.Of(req.Headers[i].Effects); len(set) != 1 || set[0].Literal.Reveal() != want {
			t.Errorf("%s: %+v", host, req.Headers[i].Effects)
		}
	}
	for _, path := range []string{"/v2/box/" + id, "/v2/box/web-1"} {
		box := f.Call(t, "GET", path, "").JSON(t)
		for field, want := range map[string]any{
			"id": id, "name": "web-1", "size": "medium", "keep_alive": true, "model": "anthropic/claude-sonnet-5", "agent": "claude-code",
			"git_user_name": "A", "status": "idle", "customer_id": "local", "total_compute_cost_usd": 0.0, "created_at": 1.7e9,
		} {
			if box[field] != want {
				t.Errorf("%s: %v, want %v", field, box[field], want)
			}
		}
	}
}

// TestMetersOfKeysOfAgents: the key of an agent is metered where the operator names the API of its server, also one that is set later.
func TestMetersOfKeysOfAgents(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.Meters = llm.Meters{"api.groq.com": llm.OpenAI} })
	meterOf := func(rules []policy.HeaderRule) (vendor llm.Vendor) {
		i := slices.IndexFunc(rules, func(r policy.HeaderRule) bool { return r.Pattern.String() == "api.groq.com" })
		if i < 0 {
			t.Fatalf("no rule for the model: %v", rules)
		}
		if m := rules[i].OnRequests().Meter; m != nil {
			vendor = m.Vendor()
		}
		return vendor
	}
	const agent = `"model":"groq/m","agent":"opencode","agent_api_key":"sk-1"`
	f.create(t, `{`+agent+`}`)
	f.Call(t, "POST", "/v2/box/from-snapshot", `{"snapshot_id":"snap_0",`+agent+`}`)
	plain := f.create(t, `{}`)
	f.Call(t, "PUT", "/v2/box/"+plain+"/config/model", `{`+agent+`}`)
	rules := [][]policy.HeaderRule{f.host.ByID[policy.BoxID(plain)].Rules.Rules}
	for _, req := range f.host.Created {
		if req.Hosted.Agent != "" {
			rules = append(rules, req.Headers)
		}
	}
	for i, set := range rules {
		if got := meterOf(set); got != llm.OpenAI || len(rules) != 3 {
			t.Errorf("%d of %d: metered as %q", i, len(rules), got)
		}
	}
}

// No response contains a secret from a request. The credentials of a URL are only in the response that created it.
func TestSecretsAreNeverReadBack(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, everything)
	f.Call(t, "PUT", "/v2/box/settings/attach-headers", `{"attach_headers":{"global.example":{"X-Key":"sk-global"}}}`)
	if made := f.Call(t, "POST", "/v2/box/"+id+"/preview", `{"port":3000,"bearer_token":true,"basic_auth":true}`).JSON(t); made["token"] != "url-token-secret" || made["password"] != "url-password-secret" || made["username"] != "box" {
		t.Fatal("the credentials of a new URL are not shown at all")
	}
	f.Call(t, "PUT", "/v2/box/"+id+"/config/attach-headers", `{"attach_headers":{"api.example.com":{"Authorization":"sk-second"}}}`)
	f.Call(t, "POST", "/v2/box", everything) // refused: the name is taken
	for _, rt := range f.api.routes {
		if rt.Method != "GET" {
			continue
		}
		got := f.Call(t, "GET", strings.Replace(rt.Path, "{id}", id, 1), "")
		got.Text = strings.ReplaceAll(got.Text, "/v2/key-secrets", "") // the path of an endpoint
		if strings.Contains(got.Text, "sk-") || strings.Contains(got.Text, "-secret") || strings.Contains(got.Text, "PRIVATE KEY") {
			t.Errorf("GET %s shows a secret: %s", rt.Path, got.Text)
		}
	}
	if log := f.log.String(); strings.Contains(log, "sk-") || strings.Contains(log, "-secret") || strings.Contains(log, apitest.Key) {
		t.Errorf("a secret in the log: %s", log)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	if req := f.host.Created[0]; req.Size != "small" || req.Policy.Mode != "" || req.TTL != 0 {
		t.Errorf("%+v", req)
	}
	f.create(t, `{"ephemeral":true}`)
	if req := f.host.Created[1]; req.TTL != 72*time.Hour {
		t.Errorf("ttl %v", req.TTL)
	}
	box := f.Call(t, "GET", "/v2/box/box2", "").JSON(t)
	if box["expires_at"] != float64(1_700_000_000+259200) || box["ephemeral"] != true {
		t.Errorf("%v", box)
	}
}

func TestConflict(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"a"}`)
	if got := f.Call(t, "POST", "/v2/box", `{"name":"a"}`); got.StatusCode != 409 || !strings.Contains(got.Text, "taken") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

func TestListByLabel(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"labels":["a"]}`)
	f.create(t, `{"labels":["b"]}`)
	if got := f.Call(t, "GET", "/v2/box?label=b", ""); !strings.Contains(got.Text, `"box2"`) || strings.Contains(got.Text, `"box1"`) {
		t.Error(got.Text)
	}
	if got := f.Call(t, "GET", "/v2/box?label=c", ""); strings.TrimSpace(got.Text) != "[]" {
		t.Error(got.Text)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for range 3 {
		f.create(t, `{}`)
	}
	got := f.Call(t, "DELETE", "/v2/box", `{"ids":["box1","box9"]}`)
	if got.StatusCode != 404 || !strings.Contains(got.Text, "box9") || len(f.host.ByID) != 3 {
		t.Fatalf("%s %s, %d boxes left", got.Status, got.Text, len(f.host.ByID))
	}
	if got := f.Call(t, "DELETE", "/v2/box", `{"ids":["box1","box2","box1"]}`); got.StatusCode != 200 || len(f.host.ByID) != 1 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "DELETE", "/v2/box/box3", ""); got.StatusCode != 200 || len(f.host.ByID) != 0 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if got := f.Call(t, "DELETE", "/v2/box/box3", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}

func TestCA(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	if got := f.Call(t, "GET", "/v2/box/"+id+"/ca", ""); got.StatusCode != 200 || !strings.HasPrefix(got.Text, "-----BEGIN CERTIFICATE") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	// The host of this test returns a private key by mistake.
	if got := f.Call(t, "GET", "/v2/ca", ""); got.StatusCode != 500 || strings.Contains(got.Text, "KEY") {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// The policy dialect of Vercel Sandbox is accepted when a box is created.
func TestCreateInAnotherPolicyDialect(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"network_policy":"deny-all"}`)
	if got := f.host.Created[0].Policy.Mode; got != policy.ModeDenyAll {
		t.Errorf("mode %q", got)
	}
	f.create(t, `{"network_policy":{"allow":{"api.example.com":[{"transform":[{"headers":{"authorization":"Bearer sk-v"}}]}]}}}`)
	req := f.host.Created[1]
	if req.Policy.Mode != policy.ModeCustom || len(req.Headers) != 1 || header.Of(req.Headers[0].Effects)[0].Literal.Reveal() != "Bearer sk-v" {
		t.Errorf("%+v", req)
	}
	both := `{"attach_headers":{"api.example.com":{"A":"b"}},"network_policy":{"allow":{"api.example.com":[{"transform":[{"headers":{"A":"c"}}]}]}}}`
	if got := f.Call(t, "POST", "/v2/box", both); got.StatusCode != 422 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}

// TestCreateWithHeaderRules: header rules of a new box are parsed like changed ones, and their problems have pointers
// into the body.
func TestCreateWithHeaderRules(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.HasSecret = func(name string) bool { return name == "known" } })
	id := f.create(t, `{"attach_headers":{"api.example.com": {
		"headers": {"authorization": {"secret": "known", "prefix": "sk-prefix "}, "X-Plain": "sk-plain"},
		"placeholders": {"API_KEY": {"secret": "known"}, "OTHER": "sk-other"}, "scrub": true}, "*.example.org": {"X-Key": "sk-compact"}}}`)
	if rule := f.host.Created[0].Headers[1]; header.Of(rule.Effects)[0].Source != "known" || header.Of(rule.Effects)[0].Prefix != "sk-prefix " || rule.Placeholders()[1].Literal.Reveal() != "sk-other" || !rule.Scrub {
		t.Errorf("the host was given %+v", rule)
	}
	f.Expect(t, 200, "GET", "/v2/box/"+id+"/config/attach-headers", "", `"headers":[{"name":"Authorization","secret":"known"},{"name":"X-Plain"}]`)
	for body, pointer := range map[string]string{
		`{"attach_headers":{"a.test":{"headers":{"X":{"secret":"unknown"}}}}}`:                         "/attach_headers/a.test/headers/X/secret",
		`{"env_vars":{"K":"v"},"attach_headers":{"a.test":{"placeholders":{"K":{"secret":"known"}}}}}`: "/env_vars/K",
	} {
		if got := f.Call(t, "POST", "/v2/box", body); got.StatusCode != 422 || got.JSON(t)["pointer"] != pointer {
			t.Errorf("%s: %s %s, want %s", body, got.Status, got.Text, pointer)
		}
	}
	if strings.Contains(f.log.String(), "sk-") {
		t.Error("the log has a value")
	}
}

// TestCreateWithNamedPolicies: a new box can follow a named policy and shows its name; anything but a plain reference is
// refused.
func TestCreateWithNamedPolicies(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.Call(t, "PUT", "/v2/box/settings/network-policies/web", `{"mode":"custom","allowed_domains":["a.example"]}`)
	id := f.create(t, `{}`)
	f.Expect(t, 200, "PUT", "/v2/box/"+id+"/config/network-policy", `{"named":"web"}`)
	f.Expect(t, 200, "GET", "/v2/box/"+id, "", `"named_policy":"web"`, `"network_policy":{"mode":"custom","allowed_domains":["a.example"]}`)
	f.Expect(t, 200, "POST", "/v2/box/"+id+"/egress/explain", `{"host":"a.example"}`, `"named":"web"`)
	f.create(t, `{"name":"second","network_policy":{"named":"web"}}`)
	if req := f.host.Created[1]; req.Named != "web" || req.Policy.Mode != "" {
		t.Errorf("%+v", req)
	}
	ci := f.key(t, `{"name":"ci","role":"box-creator"}`)
	if got := f.Call(t, "POST", "/v2/box", `{"name":"theirs","network_policy":{"named":"web"}}`, apitest.With(ci)); got.StatusCode != 201 || got.JSON(t)["named_policy"] != "web" {
		t.Error(got.Status, got.Text)
	}
	for _, policy := range []string{
		`{"named":"web","mode":"allow-all"}`, `{"named":"web","denied_domains":["a.example"]}`, `{"named":"web","allow":["a.example"]}`, `{"named":""}`,
		`{"named":null}`, `{"named":["web"]}`, `{"Named":"web"}`, `{"named":"web","named":"deb"}`,
	} {
		if got := f.Call(t, "POST", "/v2/box", `{"network_policy":`+policy+`}`); got.StatusCode != 422 || !strings.HasPrefix(got.Text, `{"error"`) || !strings.Contains(got.Text, "/network_policy") {
			t.Errorf("%s: %s %s", policy, got.Status, got.Text)
		}
	}
}

// Admin keys can set source addresses of new boxes and see them. Invalid ones are refused with a pointer, and other keys
// get a 403.
func TestSourceAddressesOfABox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	const path = "/v2/box/box1/config/source-addresses"
	f.Expect(t, 200, "PUT", path, `{"source_addresses":["203.0.113.7","2001:db8::7"]}`, "203.0.113.7", "2001:db8::7")
	f.Expect(t, 200, "GET", "/v2/box/box1", "", `"source_addresses":["203.0.113.7","2001:db8::7"]`)
	for _, bad := range []string{`["203.0.113.7","203.0.113.8"]`, `["127.0.0.1"]`, `["203.0.113.0/24"]`, `["web-1"]`} {
		f.Expect(t, 422, "POST", "/v2/box", `{"source_addresses":`+bad+`}`, "/source_addresses")
	}
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

func TestAttachIsReadBackAndDetached(t *testing.T) {
	t.Parallel()
	f := serve(t)
	made := f.Call(t, "POST", "/v2/box/attach", `{"netns":"/run/netns/guest","name":"guest","labels":["x"],
		"network_policy":{"mode":"deny-all"},"attach_headers":{"api.example.com":{"X-Key":"sk-attach"}}}`)
	if made.StatusCode != 201 || strings.Contains(made.Text, "sk-attach") {
		t.Fatalf("%d %s", made.StatusCode, made.Text)
	}
	box := made.JSON(t)
	attached, _ := box["attached"].(map[string]any)
	if attached["kind"] != "netns" || attached["ref"] != "/run/netns/guest" || box["name"] != "guest" {
		t.Errorf("%v", box)
	}
	for body, ref := range map[string]string{"": "/run/netns/guest", `{}`: "/run/netns/guest", `{"container":"other"}`: "other"} {
		a := f.Call(t, "POST", "/v2/box/guest/reattach", body)
		if attached, _ := a.JSON(t)["attached"].(map[string]any); a.StatusCode != 200 || body != "" && body != `{}` && attached["ref"] != ref {
			t.Errorf("reattach %s: %d %s", body, a.StatusCode, a.Text)
		}
	}
	if a := f.Call(t, "POST", "/v2/box/guest/reattach", `{"container":"a","pid":1}`); a.StatusCode != 422 {
		t.Errorf("reattach to two: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "POST", "/v2/box/guest/detach", ""); a.StatusCode != 200 {
		t.Errorf("detach: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "GET", "/v2/box/guest", ""); a.StatusCode != 404 {
		t.Errorf("after detach: %d", a.StatusCode)
	}
	id := f.create(t, `{}`)
	if a := f.Call(t, "POST", "/v2/box/"+id+"/reattach", ""); a.StatusCode != 409 {
		t.Errorf("reattaching a launched box: %d %s", a.StatusCode, a.Text)
	}
	if a := f.Call(t, "POST", "/v2/box/"+id+"/detach", ""); a.StatusCode != 409 {
		t.Errorf("detaching a launched box: %d %s", a.StatusCode, a.Text)
	}
}

func TestAttachRefusesMistakes(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for body, pointer := range map[string]string{
		`{}`: "", `{"pid":1,"netns":"/x"}`: "", `{"netns":"x"}`: "/netns", `{"netns":"/x/../y"}`: "/netns", `{"netns":"/x\n"}`: "/netns",
		`{"pid":-1}`: "/pid", `{"pid":99999999}`: "/pid", `{"container":"a/b"}`: "/container", `{"container":"-x"}`: "/container",
		`{"pid":1,"network_policy":{"mode":"custom","allowed_domains":["a*.b"]}}`: "/network_policy/allowed_domains/0",
		`{"pid":1,"env_vars":{"A":"b"}}`:                                          "/env_vars", `{"interface":"veth0"}`: "/interface",
		`{"pid":1,"name":"-"}`: "/name", `{"pid":1,"attach_headers":{"*":{"A":"b"}}}`: "/attach_headers",
	} {
		a := f.Call(t, "POST", "/v2/box/attach", body)
		if a.StatusCode != 422 || !strings.Contains(a.Text, `"pointer":"`+pointer) {
			t.Errorf("%s: %d %s, want the pointer %q", body, a.StatusCode, a.Text, pointer)
		}
	}
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

// A self-test is tight only if at least one probe was run, none that could have found a hole was left out, and no hole
// was found.
func TestSelfTestVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdicts []api.SelfTestVerdict
		tight    bool
	}{
		"nothing tested":  {nil, false},
		"nothing applied": {[]api.SelfTestVerdict{api.ProbeSkipped}, false},
		"all tight":       {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeSkipped, api.ProbeTight}, true},
		"a hole":          {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeHole}, false},
		"one not run":     {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeNotRun}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t)
			f.create(t, `{"name":"tested"}`)
			for _, v := range tt.verdicts {
				f.host.Probes = append(f.host.Probes, api.SelfTestProbe{Group: "names", Attack: "a", Family: "ipv4", Verdict: v, Why: "w"})
			}
			got := f.Call(t, "POST", "/v2/box/tested/selftest", "")
			var card struct {
				Box     string
				Tight   bool
				Summary struct{ Tight, Holes, Skipped int }
				Probes  []struct{ Group, Family, Verdict, Why string }
			}
			if err := json.Unmarshal([]byte(got.Text), &card); err != nil || got.StatusCode != http.StatusOK {
				t.Fatal(err, got.StatusCode, got.Text)
			}
			if card.Tight != tt.tight || card.Box != "box1" || len(card.Probes) != len(tt.verdicts) {
				t.Errorf("card %+v", card)
			}
			for i, p := range card.Probes {
				if p.Verdict != string(tt.verdicts[i]) || p.Group != "names" || p.Family != "ipv4" || p.Why != "w" {
					t.Errorf("probe %+v", p)
				}
			}
		})
	}
}

// A self-test of an unknown box is a 404.
func TestSelfTestOfNoBox(t *testing.T) {
	t.Parallel()
	if got := serve(t).Call(t, "POST", "/v2/box/none/selftest", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", got.StatusCode, got.Text)
	}
}

// A follower receives past and then new decisions, each once, and the number of lost ones.
func TestFollow(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	f.host.AddDecision(apitest.Decision(id, 100, "past.example", policy.Allow))
	resp := f.stream(t, "/v2/box/box1/egress?follow=true", "")
	read(t, resp.Body, "past.example")
	again := apitest.Decision(id, 100, "past.example", policy.Allow)
	again.Seq = 1
	f.host.AddDecision(again)
	f.host.AddDecision(apitest.Decision(id, 200, "later.example", policy.Deny))
	got := read(t, resp.Body, "later.example")
	if strings.Contains(got, "past.example") || !strings.Contains(got, `{"lost":3}`) {
		t.Errorf("%q", got)
	}
	done := make(chan error, 1)
	go func() { done <- f.Config.Shutdown(t.Context()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a follower holds up the shutdown")
	}
}
