package approvals

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestMain(m *testing.M) { harness.Main(m) }

// asking lets every box ask.
func asking(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true }

const endpoint = "http://policy.boxgate.internal"

// ask makes a request for access from a box, and returns the parsed answer.
func ask(w *harness.World, box, body string) (answer map[string]any, status string) {
	w.T.Helper()
	out := w.MustSh(box, "curl -sS -m 60 -w '\\n%{http_code}' -H 'Content-Type: application/json' -d '"+body+"' "+endpoint+"/v1/requests")
	return split(w, out)
}

// get reads from the endpoint in a box.
func get(w *harness.World, box, path string) (answer map[string]any, status string) {
	w.T.Helper()
	return split(w, w.MustSh(box, "curl -sS -m 90 -w '\\n%{http_code}' '"+endpoint+path+"'"))
}

func split(w *harness.World, out string) (answer map[string]any, status string) {
	w.T.Helper()
	out = strings.TrimSpace(out)
	end := strings.LastIndexByte(out, '\n')
	if end < 0 {
		w.T.Fatalf("no answer: %q", out)
	}
	if err := json.Unmarshal([]byte(out[:end]), &answer); err != nil {
		w.T.Fatalf("%v: %s", err, out)
	}
	return answer, out[end+1:]
}

// TestAnAgentAsksIsApprovedAndFinishes follows an agent in a box: its request is denied with the next steps, it asks, waits, is
// approved from outside, and finishes. The trail names the key that approved, and both reasons.
func TestAnAgentAsksIsApprovedAndFinishes(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	// The denial contains the request that the agent makes next.
	denied, status := split(w, w.MustSh(box, "curl -sS -m 60 -w '\\n%{http_code}' http://www.example.com/"))
	if status != "403" || denied["reason"] != "not_allowed" {
		t.Fatal(status, denied)
	}
	steps, _ := json.Marshal(denied["next_steps"])
	harness.Contains(t, string(steps), endpoint+"/v1/requests", "www.example.com", "wait_url")
	list, _ := get(w, box, "/v1/denials")
	text, _ := json.Marshal(list)
	harness.Contains(t, string(text), "www.example.com", "not_allowed", "next_steps")
	seen, _ := get(w, box, "/v1/policy")
	text, _ = json.Marshal(seen)
	harness.Contains(t, string(text), "api.example.com", `"custom"`)

	asked, status := ask(w, box, `{"host":"www.example.com","port":80,"reason":"the docs of the task"}`)
	if status != "201" || asked["state"] != "open" {
		t.Fatal(status, asked)
	}
	id, _ := asked["id"].(string)
	if again, status := ask(w, box, `{"host":"WWW.example.com","port":80,"reason":"again"}`); status != "200" || again["id"] != id {
		t.Error("the same request was made twice:", status, again)
	}
	if out, code := w.Sh(box, "curl -sS -m 60 -f http://www.example.com/"); code == 0 {
		t.Error("the request alone opened it:", out)
	}
	// Someone outside answers while the agent waits.
	var waited strings.Builder
	wait := w.Background(box, "curl -sS -m 90 '"+asked["wait_url"].(string)+"'", &waited)
	w.Until("the agent waits", func() bool {
		for _, e := range w.Events(box) {
			if e.Stage == policy.StageDNS && e.Name == "policy.boxgate.internal" && e.Reason == name.ReasonGateway {
				return true
			}
		}
		return false
	})
	harness.Contains(t, w.Run(0, nil, "", "approvals", "list"), id, "www.example.com:80", "the docs of the task")
	harness.Contains(t, w.Run(0, nil, "", "approvals", "show", id), "TCP connections to port 80 of www.example.com", "not_allowed", "| the docs of the task")
	if out, code := w.GatewayCommand("approvals", "approve", id, "--for", "10m", "--reason", "docs are fine"); code != 2 {
		t.Errorf("approved without a candidate: %d %s", code, out)
	}
	harness.Contains(t, w.Run(0, nil, "", "approvals", "approve", id, "--for", "10m", "--reason", "docs are fine", "--yes"), "once", "until")
	if code, err := wait(); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	harness.Contains(t, waited.String(), `"state": "once"`, `"answer": "docs are fine"`, `"until"`)
	w.MustSh(box, "curl -sS -m 60 -f http://www.example.com/")
	trail := w.Run(0, nil, "", "audit", "--json")
	harness.Contains(t, trail, `"answer":"once"`, `"reason":"docs are fine"`, `"asked":"the docs of the task"`, "www.example.com:80")
	w.Event(box, func(e audit.Event) bool {
		return e.Name == "policy.boxgate.internal" && e.Stage == policy.StageHTTP && e.Action == audit.ActionAnswer && e.Reason == name.ReasonGateway
	})
	var state struct{ Leases []struct{ Entry string } }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &state); err != nil || len(state.Leases) != 1 || state.Leases[0].Entry != "www.example.com:80" {
		t.Error(err, state)
	}
	w.NoInternalErrors()
}

// TestAnAgentAsksByMCP: `gateway mcp` in a box, without a key and a configuration, gives an agent the policy, its denials and access
// that is approved while the agent waits.
func TestAnAgentAsksByMCP(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.Run(0, nil, "", "box", "cp", harness.Gateway(), box+":/tmp/gateway")
	w.MustSh(box, "chmod 755 /tmp/gateway; curl -sS -m 60 -o /dev/null http://www.example.com/")
	call := func(id int, method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
	}
	lines := strings.Join([]string{
		call(1, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"agent","version":"1"}}`),
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`, call(2, "tools/list", "{}"),
		call(3, "tools/call", `{"name":"network_policy"}`), call(4, "tools/call", `{"name":"network_denials"}`),
		call(5, "tools/call", `{"name":"request_access","arguments":{"host":"www.example.com","port":80,"reason":"docs of the task"}}`),
	}, "\n")
	var out strings.Builder
	// The input stays open until the answer to the request has come.
	wait := w.Background(box, "{ cat >/tmp/lines <<'END'\n"+lines+"\nEND\n} && (cat /tmp/lines; until grep -q '\"id\":5' /tmp/out; do sleep 0.2; done) | /tmp/gateway mcp >/tmp/out; cat /tmp/out", &out)
	id := ""
	w.Until("the agent asks", func() bool {
		var list []struct{ ID string }
		if err := w.Client.Get(t.Context(), "/v2/approvals?state=open", &list); err != nil || len(list) == 0 {
			return false
		}
		id = list[0].ID
		return true
	})
	w.Run(0, nil, "", "approvals", "approve", id, "--reason", "docs are fine", "--yes")
	if code, err := wait(); code != 0 || err != nil {
		t.Fatal(code, err, out.String())
	}
	harness.Contains(t, out.String(), `"protocolVersion":"2025-06-18"`, `"name":"request_access"`, `api.example.com`, `not_allowed`, `\"state\": \"once\"`, "docs are fine")
	w.MustSh(box, "curl -sS -m 60 -f http://www.example.com/")
	w.NoInternalErrors()
}
