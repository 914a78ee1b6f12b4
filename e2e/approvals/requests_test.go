package approvals

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// readOnly is a policy that allows reading from www.example.com only.
func readOnly() map[string]any {
	return map[string]any{"mode": "custom", "allowed_domains": []string{"www.example.com"}, "rules": []any{
		map[string]any{"hosts": []string{"www.example.com"}, "methods": []string{"GET"}, "action": "allow"},
		map[string]any{"hosts": []string{"www.example.com"}, "action": "deny"},
	}}
}

// status makes a request in a box, and returns its status.
func status(w *harness.World, box, method, url string) string {
	w.T.Helper()
	return w.MustSh(box, "curl -sS -m 60 --path-as-is -o /dev/null -w '%{http_code}' -X "+method+" '"+url+"'")
}

// TestAMethodAndAPathCanBeAskedFor follows an agent whose request a rule denies: the denial contains the request for access that it makes,
// and an approval opens this method on these paths only, until it ends or for good.
func TestAMethodAndAPathCanBeAskedFor(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": readOnly()})
	denied, code := split(w, w.MustSh(box, "curl -sS -m 60 -w '\\n%{http_code}' -X DELETE 'http://www.example.com/items/1?force=1'"))
	if code != "403" || denied["reason"] != "request_rule" {
		t.Fatal(code, denied)
	}
	steps := fmt.Sprint(denied["next_steps"])
	harness.Contains(t, steps, `{"host":"www.example.com","port":80,"method":"DELETE","path":"/items/1","reason":`, endpoint+"/v1/requests")
	list, _ := get(w, box, "/v1/denials")
	harness.Contains(t, fmt.Sprint(list), `"method":"DELETE","path":"/items/1"`)
	over, _ := split(w, w.MustSh(box, "curl -sS -m 60 -w '\\n%{http_code}' -X DELETE https://www.example.com/items/1"))
	harness.Contains(t, fmt.Sprint(over["next_steps"]), `"port":443,"method":"DELETE"`)

	for body, want := range map[string]string{
		`{"host":"www.example.com","port":80,"method":"GET","path":"/","reason":"x"}`:                                     "409", // allowed already
		`{"host":"cdn.example.org","port":80,"method":"GET","path":"/","reason":"x"}`:                                     "409", // the host comes first
		`{"host":"www.example.com","port":80,"reason":"x"}`:                                                               "409",
		`{"host":"www.example.com","port":80,"method":"DELETE","reason":"x"}`:                                             "422",
		`{"host":"www.example.com","port":80,"path":"/x","reason":"x"}`:                                                   "422",
		`{"host":"www.example.com","port":80,"method":"delete","path":"/x","reason":"x"}`:                                 "422",
		`{"host":"www.example.com","port":80,"method":"DELETE","path":"/x/../y","reason":"x"}`:                            "422",
		`{"host":"www.example.com","port":80,"method":"DELETE","path":"/x\u001b[2J","reason":"x"}`:                        "422",
		`{"host":"www.example.com","port":80,"method":"DELETE","path":"/a*b","reason":"x"}`:                               "422",
		`{"host":"*.example.com","port":80,"method":"DELETE","path":"/x","reason":"x"}`:                                   "422",
		`{"host":"198.51.100.10","method":"DELETE","path":"/x","reason":"x"}`:                                             "422",
		`{"host":"www.example.com","port":80,"method":"CONNECT","path":"/x","reason":"x"}`:                                "422",
		`{"host":"policy.boxgate.internal","port":80,"method":"DELETE","path":"/v1/policy","reason":"x"}`:                 "422",
		`{"host":"www.example.com","port":80,"methods":["DELETE"],"path":"/x","reason":"x"}`:                              "422",
		`{"host":"www.example.com","port":80,"method":"DELETE","path":"/` + strings.Repeat("a", 1024) + `","reason":"x"}`: "422",
	} {
		if answer, status := ask(w, box, body); status != want {
			t.Errorf("%s: %s %v, want %s", body, status, answer, want)
		}
	}
	asked, code := ask(w, box, `{"host":"www.example.com","port":80,"method":"DELETE","path":"/items/*","reason":"old items"}`)
	if code != "201" || asked["path"] != "/items/*" {
		t.Fatal(code, asked)
	}
	id, _ := asked["id"].(string)
	if got := status(w, box, "DELETE", "http://www.example.com/items/1"); got != "403" {
		t.Error("asking alone has opened it:", got)
	}
	denied, _ = split(w, w.MustSh(box, "curl -sS -m 60 -w '\\n%{http_code}' -X DELETE http://www.example.com/items/1"))
	harness.Contains(t, fmt.Sprint(denied["next_steps"]), endpoint+"/v1/requests/"+id+"/wait")
	harness.Contains(t, w.Run(0, nil, "", "approvals", "show", id), "DELETE www.example.com:80/items/*", "every path that begins with /items/", "before the rule")
	log := w.Run(0, nil, "", "log", "--box", box, "--denied")
	harness.Contains(t, log, "the box has asked for it", "approvals show "+id)
	w.Run(0, nil, "", "approvals", "approve", id, "--for", "10m", "--reason", "they are old", "--yes")
	only := func(open string) {
		t.Helper()
		for _, request := range []string{
			"DELETE /items/2", "DELETE /items/", "DELETE /items", "DELETE /other", "POST /items/2", "PUT /file", "PUT /file/2", "DELETE /items/../other", "DELETE /items/%2e%2e/other", "DELETE //items/2", "DELETE /items/2;x",
		} {
			method, path, _ := strings.Cut(request, " ")
			got := status(w, box, method, "http://www.example.com"+path)
			if want := slices.Contains(strings.Split(open, ", "), request); (got != "403") != want {
				t.Errorf("%s: %s, open: %v", request, got, want)
			}
		}
		if got := status(w, box, "DELETE", "https://www.example.com/items/2"); got != "403" {
			t.Error("another port:", got)
		}
	}
	only("DELETE /items/2, DELETE /items/")
	harness.Contains(t, w.Run(0, nil, "", "policy", "leases", box), "DELETE www.example.com:80/items/*")
	// For good: the rule is in the policy, directly before the one that denies.
	always, _ := ask(w, box, `{"host":"www.example.com","port":80,"method":"PUT","path":"/file","reason":"uploads"}`)
	w.Run(0, nil, "", "approvals", "approve", always["id"].(string), "--always", "--reason", "needed by each build", "--yes")
	only("DELETE /items/2, DELETE /items/, PUT /file")
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "config/network-policy/leases"), nil, nil); err != nil {
		t.Fatal(err)
	}
	only("PUT /file")
	var state struct{ policy.Spec }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &state); err != nil || len(state.Rules) != 3 || state.Rules[1].Methods[0] != "PUT" || state.Rules[2].Action != "deny" {
		t.Error(err, state.Rules)
	}
	w.NoInternalErrors()
}

// TestAWaitSurvivesAReplacement: while the gateway is replaced, a box that waits gets its request as it is and waits again in the
// process that follows, which has the answer; `gateway mcp` does so by itself.
func TestAWaitSurvivesAReplacement(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.Run(0, nil, "", "box", "cp", harness.Gateway(), box+":/tmp/gateway")
	w.MustSh(box, "chmod 755 /tmp/gateway")
	asked, code := ask(w, box, `{"host":"www.example.com","port":80,"reason":"docs"}`)
	if code != "201" {
		t.Fatal(code, asked)
	}
	id, _ := asked["id"].(string)
	var waited, agent strings.Builder
	wait := w.Background(box, "curl -sS -m 90 '"+asked["wait_url"].(string)+"'", &waited)
	call := `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"request_access","arguments":{"host":"www.example.com","port":80,"reason":"docs","wait_seconds":600}}}`
	ended := w.Background(box, "(echo '"+call+"'; until grep -q '\"id\":5' /tmp/out; do sleep 0.2; done) | /tmp/gateway mcp >/tmp/out; cat /tmp/out", &agent)
	w.Until("both wait", func() bool { return w.Metric("boxgate_approvals_waiting") == 2 })
	if open := w.Metric("boxgate_approvals_open"); open != 1 {
		t.Error("open requests in the metrics:", open)
	}
	upgrade := w.Command(t.Context(), "upgrade")
	var said strings.Builder
	upgrade.Stdout, upgrade.Stderr = &said, &said
	if err := w.Net.Gateway().Start(upgrade); err != nil {
		t.Fatal(err)
	}
	if err := upgrade.Wait(); err != nil {
		t.Fatal(err, said.String())
	}
	// It ends although there is no answer yet.
	if code, err := wait(); code != 0 || err != nil {
		t.Fatal(code, err, waited.String())
	}
	harness.Contains(t, waited.String(), `"state": "open"`, `"wait_url"`)
	var again strings.Builder
	wait = w.Background(box, "curl -sS -m 90 '"+asked["wait_url"].(string)+"'", &again)
	w.Until("both wait again", func() bool { return w.Metric("boxgate_approvals_waiting") == 2 })
	if open := w.Metric("boxgate_approvals_open"); open != 1 {
		t.Error("open requests in the metrics of the next process:", open)
	}
	w.Run(0, nil, "", "approvals", "approve", id, "--reason", "docs are fine", "--yes")
	if code, err := wait(); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	harness.Contains(t, again.String(), `"state": "once"`, "docs are fine")
	if code, err := ended(); code != 0 || err != nil {
		t.Fatal(code, err, agent.String())
	}
	harness.Contains(t, agent.String(), `\"state\": \"once\"`)
	w.MustSh(box, "curl -sS -m 60 -f http://www.example.com/")
	w.NoInternalErrors()
}

// TestAWaitEndsWithTheGateway: a gateway that stops answers the boxes that wait instead of cutting them at the end of its patience, and
// `gateway mcp` waits for the next gateway.
func TestAWaitEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.Run(0, nil, "", "box", "cp", harness.Gateway(), box+":/tmp/gateway")
	asked, code := ask(w, box, `{"host":"www.example.com","port":80,"reason":"docs"}`)
	if code != "201" {
		t.Fatal(code, asked)
	}
	// Commands end with the gateway, so these are left behind in the box.
	call := `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"request_access","arguments":{"host":"www.example.com","port":80,"reason":"docs","wait_seconds":3600}}}`
	w.MustSh(box, "chmod 755 /tmp/gateway; (setsid sh -c 'curl -sS -m 90 \""+asked["wait_url"].(string)+"\" >/tmp/waited 2>&1; echo $? >/tmp/code' </dev/null >/dev/null 2>&1 &)")
	w.MustSh(box, "cat >/tmp/call <<'END'\n"+call+"\nEND\n(setsid sh -c '(cat /tmp/call; until grep -q \"id.:5\" /tmp/out; do sleep 0.2; done) | /tmp/gateway mcp >/tmp/out' </dev/null >/dev/null 2>&1 &)")
	w.Until("both wait", func() bool { return w.Metric("boxgate_approvals_waiting") == 2 })
	if err := errors.Join(w.Stop(), w.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	w.Until("the response has ended", func() bool { return w.MustSh(box, "cat /tmp/code 2>/dev/null || true") != "" })
	harness.Contains(t, w.MustSh(box, "cat /tmp/code /tmp/waited"), "0\n", `"state": "open"`, `"wait_url"`)
	w.Until("the agent waits again", func() bool { return w.Metric("boxgate_approvals_waiting") == 1 })
	w.Run(0, nil, "", "approvals", "approve", asked["id"].(string), "--reason", "docs are fine", "--yes")
	w.Until("the agent has the answer", func() bool { return strings.Contains(w.MustSh(box, "cat /tmp/out"), `\"state\": \"once\"`) })
	w.NoInternalErrors()
}

// TestARequestInProgressEndsWithItsApproval: a response that streams when the approval of its method and path ends is cut, and other
// requests of the box go on.
func TestARequestInProgressEndsWithItsApproval(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	const host = "stream.example.net"
	if err := errors.Join(w.Net.AddHost(host, "198.51.100.123"), w.Net.ServeHTTP(host, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = io.WriteString(rw, "more\n")
				_ = http.NewResponseController(rw).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{host}, "rules": []any{
		map[string]any{"hosts": []string{host}, "methods": []string{"GET"}, "action": "allow"}, map[string]any{"hosts": []string{host}, "action": "deny"},
	}}})
	stream := func(method, file string) func() (int, error) {
		wait := w.Background(box, "curl -sS -N -m 600 -X "+method+" https://"+host+"/items/1 >"+file, io.Discard)
		w.Until("the response streams", func() bool {
			return strings.Contains(w.MustSh(box, "head -c 100 "+file+" 2>/dev/null || true"), "more")
		})
		return wait
	}
	other := stream("GET", "/tmp/other")
	asked, code := ask(w, box, `{"host":"`+host+`","method":"POST","path":"/items/1","reason":"events"}`)
	if code != "201" {
		t.Fatal(code, asked)
	}
	w.Run(0, nil, "", "approvals", "approve", asked["id"].(string), "--for", "10m", "--reason", "fine", "--yes")
	wait := stream("POST", "/tmp/approved")
	w.Run(0, nil, "", "policy", "end", box, "POST "+host+":443/items/1")
	if code, err := wait(); code == 0 || err != nil {
		t.Error("the response was not cut:", code, err)
	}
	if got := status(w, box, "POST", "https://"+host+"/items/1"); got != "403" {
		t.Error("after the end:", got)
	}
	size := w.MustSh(box, "wc -c </tmp/other")
	w.Until("the other response goes on", func() bool { return w.MustSh(box, "wc -c </tmp/other") != size })
	w.SetPolicy(box, map[string]any{"mode": "deny-all"})
	_, _ = other()
	w.NoInternalErrors()
}
