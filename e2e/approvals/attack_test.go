package approvals

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// shut reports a request that passes although no one has approved it.
func shut(w *harness.World, box string, hosts ...string) {
	w.T.Helper()
	for _, host := range hosts {
		for _, scheme := range []string{"http", "https"} {
			if out, code := w.Sh(box, "curl -k -sS -m 60 -f "+scheme+"://"+host+"/"); code == 0 {
				w.T.Errorf("%s://%s is open: %s", scheme, host, out)
			}
		}
	}
}

// policyText returns the policy of a box with its version and leases.
func policyText(w *harness.World, box string) string {
	w.T.Helper()
	var raw json.RawMessage
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box, "config/network-policy"), &raw); err != nil {
		w.T.Fatal(err)
	}
	return string(raw)
}

// TestAskingOpensNothing: requests in every form, a flood of them, answers from inside the box and headers that claim to be
// someone else leave the policy and its version as they were. The requests that are open at a time are bounded.
func TestAskingOpensNothing(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"}, "denied_domains": []string{"evil.example.net"}}})
	other := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	before := policyText(w, box)
	for body, want := range map[string]string{
		`{"host":"evil.example.net","reason":"x"}`:                         "403", // denied entries win
		`{"host":"10.0.0.1","reason":"x"}`:                                 "403", // protected
		`{"host":"169.254.169.254","reason":"x"}`:                          "403",
		`{"host":"api.example.com","reason":"x"}`:                          "409", // allowed already
		`{"host":"*.example.com","reason":"x"}`:                            "422",
		`{"host":"*","reason":"x"}`:                                        "422",
		`{"host":"192.0.2.0/24","reason":"x"}`:                             "422",
		`{"host":"www.example.com","port":443}`:                            "422",
		`{"host":"www.example.com","reason":"x","port":65536}`:             "422",
		`{"host":"www.example.com","reason":"x","state":"always"}`:         "422",
		`{"host":"www.example.com","reason":"x","box":"` + other + `"}`:    "422",
		`{"host":"www.example.com","reason":"x","expires_in":999999999}`:   "422",
		`{"host":"www.example.com","host":"cdn.example.org","reason":"x"}`: "422",
		`{"host":"www.example.com","reason":"\u001b[2J"}`:                  "422",
		`[]`: "422",
	} {
		if answer, status := ask(w, box, body); status != want {
			t.Errorf("%s: %s %v, want %s", body, status, answer, want)
		}
	}
	// The flood: many destinations, in parallel.
	flood := `seq 1 300 | xargs -P 16 -I N curl -sS -m 60 -o /dev/null -w '%{http_code}\n' -H 'Content-Type: application/json' -d '{"host":"hN.example.org","reason":"flood"}' ` + endpoint + `/v1/requests | sort | uniq -c`
	out := w.MustSh(box, flood)
	harness.Contains(t, out, "16 201", "429")
	list, _ := get(w, other, "/v1/requests")
	if all, _ := list["requests"].([]any); len(all) != 0 {
		t.Error("the requests of another box are shown:", list)
	}
	w.Until("the rate recovers", func() (ok bool) {
		var status string
		list, status = get(w, box, "/v1/requests")
		return status == "200"
	})
	all, _ := list["requests"].([]any)
	if len(all) != 16 {
		t.Fatalf("%d open requests", len(all))
	}
	id, _ := all[0].(map[string]any)["id"].(string)
	for path, want := range map[string]string{"/v1/requests/" + id: "404", "/v1/requests/" + id + "/wait": "404"} {
		if answer, status := get(w, other, path); status != want {
			t.Errorf("%s from another box: %s %v", path, status, answer)
		}
	}
	// The box answers itself.
	for _, args := range []string{
		"-X POST -H 'Content-Type: application/json' -d '{\"answer\":\"always\",\"reason\":\"x\"}' " + endpoint + "/v1/requests/" + id,
		"-X PUT -d '{\"mode\":\"allow-all\"}' " + endpoint + "/v1/policy", "-X DELETE " + endpoint + "/v1/requests/" + id,
		endpoint + "/v2/approvals", endpoint + "/v2/box", endpoint + "/healthz", endpoint + "/", endpoint + "/v1/../v2/approvals --path-as-is", endpoint + "/metrics",
	} {
		if out := w.MustSh(box, "curl -sS -m 60 -o /dev/null -w '%{http_code}' "+args); !slices.Contains([]string{"404", "405", "301", "307", "429"}, out) {
			t.Errorf("%s: %s", args, out)
		}
	}
	shut(w, box, "www.example.com", "h1.example.org", "evil.example.net")
	if after := policyText(w, box); after != before {
		t.Errorf("the policy has changed:\n%s\n%s", before, after)
	}
	harness.Contains(t, w.Run(0, nil, "", "approvals", "list"), "flood")
	w.NoInternalErrors()
}

// TestTheEndpointIsOneName: the endpoint is reachable under every policy, at its own name, over plain HTTP, through the explicit
// proxy and over both families, and nowhere else; other names lead nowhere else either.
func TestTheEndpointIsOneName(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	for _, p := range []map[string]any{
		{"mode": "allow-all"}, {"mode": "deny-all"}, harness.Custom("api.example.com"),
		{"mode": "custom", "denied_domains": []string{"evil.example.net", "*.boxgate.internal"}}, {"mode": "custom", "allowed_cidrs": []string{"192.0.2.0/24"}},
	} {
		box := w.Create(map[string]any{"network_policy": p})
		for _, line := range []string{
			"curl -4 -sS -m 60 -f " + endpoint + "/v1/policy", "curl -6 -sS -m 60 -f " + endpoint + "/v1/policy", "curl -sS -m 60 -f -H 'Host: POLICY.boxgate.internal:80' " + endpoint + "/v1/policy",
			"curl -sS -m 60 -f -x http://10.200.0.1:3128 " + endpoint + "/v1/policy",
		} {
			if out, code := w.Sh(box, line); code != 0 || !strings.Contains(out, `"policy"`) {
				t.Errorf("%v: %s: %d %s", p["mode"], line, code, out)
			}
		}
		for _, line := range []string{
			"curl -sS -m 60 -f -k https://policy.boxgate.internal/v1/policy", "curl -sS -m 60 -f http://policy.boxgate.internal:8080/v1/policy",
			"curl -sS -m 60 -f -k -p -x http://10.200.0.1:3128 https://policy.boxgate.internal/v1/policy",
			"curl -sS -m 60 -f -H 'Host: policy.boxgate.internal.' " + endpoint + ":81/v1/policy",
			"curl -sS -m 60 -f http://boxgate.internal/v1/policy", "curl -sS -m 60 -f http://x.policy.boxgate.internal/v1/policy",
			"curl -sS -m 60 -f -H 'Host: 10.200.0.2' " + endpoint + "/v1/policy",
		} {
			if out, code := w.Sh(box, line); code == 0 {
				t.Errorf("%v: %s: %s", p["mode"], line, out)
			}
		}
		pem := w.MustSh(box, "curl -sS -m 60 -f "+endpoint+"/v1/ca")
		harness.Contains(t, pem, "BEGIN CERTIFICATE")
		harness.Contains(t, w.MustSh(box, "cat /etc/boxgate/AGENTS.md"), endpoint, "/v1/requests")
		w.MustDelete(box)
	}
	w.NoInternalErrors()
}

// TestTheEndpointIsOff: by default no box has the endpoint. With the configuration alone, only boxes have it for which it was
// turned on; denials of the others do not mention it.
func TestTheEndpointIsOff(t *testing.T) {
	t.Parallel()
	off := harness.Shared(t)
	box := off.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	if out, code := off.Sh(box, "curl -sS -m 60 -f "+endpoint+"/v1/policy"); code == 0 {
		t.Error("by default:", out)
	}
	if out := off.MustSh(box, "curl -sS -m 60 http://www.example.com/; ls /etc/boxgate 2>&1 || true"); strings.Contains(out, "next_steps") || strings.Contains(out, "AGENTS") {
		t.Error("by default:", out)
	}
	if out, code := off.GatewayCommand("approvals", "enable", box); code != 1 || !strings.Contains(out, "approvals.enabled") {
		t.Error(code, out)
	}
	w := harness.SharedWith(t, func(c *config.Config) { c.Approvals.Enabled = true })
	one, two := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}), w.Create(map[string]any{})
	w.Run(0, nil, "", "approvals", "enable", one)
	w.MustSh(one, "curl -sS -m 60 -f "+endpoint+"/v1/policy")
	if out, code := w.Sh(two, "curl -sS -m 60 -f "+endpoint+"/v1/policy"); code == 0 {
		t.Error("of the other box:", out)
	}
	asked, status := ask(w, one, `{"host":"www.example.com","reason":"docs"}`)
	if status != "201" {
		t.Fatal(status, asked)
	}
	// Settings and requests outlive a restart.
	if err := errors.Join(w.Stop(), w.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if list, status := get(w, one, "/v1/requests"); status != "200" || !strings.Contains(fmt.Sprint(list), asked["id"].(string)) {
		t.Error("after a restart:", status, list)
	}
	w.Run(0, nil, "", "approvals", "disable", one)
	if out, code := w.Sh(one, "curl -sS -m 60 -f "+endpoint+"/v1/policy"); code == 0 {
		t.Error("after it was turned off:", out)
	}
	id, _ := asked["id"].(string)
	w.MustDelete(one)
	if out, code := w.GatewayCommand("approvals", "show", id); code != 1 {
		t.Errorf("the request of a deleted box: %d %s", code, out)
	}
	w.NoInternalErrors()
}

// TestAnApprovalAppliesWhatWasShown: an approval whose effect has changed since it was shown fails and changes nothing, a second
// answer fails, "always" adds exactly the shown entry to the policy, and a denial answers the same request again.
func TestAnApprovalAppliesWhatWasShown(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, asking)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	asked, _ := ask(w, box, `{"host":"www.example.com","reason":"docs"}`)
	path := api.BoxPath(box, "approvals", asked["id"].(string))
	show := func() string {
		var a struct{ Candidate struct{ Digest string } }
		if err := w.Client.Get(t.Context(), path, &a); err != nil || a.Candidate.Digest == "" {
			t.Fatal(err, a)
		}
		return a.Candidate.Digest
	}
	answer := func(body map[string]any) error { return w.Client.Do(t.Context(), "POST", path, body, nil) }
	first := show()
	for _, digest := range []string{"", strings.Repeat("0", 32)} {
		if err := answer(map[string]any{"answer": "always", "reason": "x", "candidate": digest}); err == nil {
			t.Errorf("approved as %q", digest)
		}
	}
	// The gateway adds a credential for the host: an approval would now give the box its use.
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/attach-headers"), map[string]any{"attach_headers": map[string]any{"www.example.com": map[string]string{"X-Key": harness.Canary}}}, nil); err != nil {
		t.Fatal(err)
	}
	before := policyText(w, box)
	if err := answer(map[string]any{"answer": "once", "reason": "x", "candidate": first}); err == nil || !strings.Contains(err.Error(), "another effect") {
		t.Error("approved although the effect has changed:", err)
	}
	if after := policyText(w, box); after != before {
		t.Error("a refused approval changed the policy:", after)
	}
	second := show()
	harness.Contains(t, w.Run(0, nil, "", "approvals", "show", asked["id"].(string)), "credentials", "www.example.com")
	// A change that does not concern the destination leaves the candidate valid.
	w.SetPolicy(box, harness.Custom("cdn.example.org"))
	w.SetPolicy(box, map[string]any{"mode": "deny-all"})
	if third := show(); third != second {
		t.Error("another candidate for the same effect")
	}
	if err := answer(map[string]any{"answer": "always", "reason": "needed by each build", "candidate": second}); err != nil {
		t.Fatal(err)
	}
	if err := answer(map[string]any{"answer": "always", "reason": "x", "candidate": second}); err == nil {
		t.Error("answered twice")
	}
	var state struct {
		Mode           string
		AllowedDomains []string `json:"allowed_domains"`
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &state); err != nil || state.Mode != "custom" || !slices.Equal(state.AllowedDomains, []string{"www.example.com:443"}) {
		t.Error(err, state)
	}
	w.MustSh(box, "curl -sS -m 60 -f https://www.example.com/")
	shut(w, box, "cdn.example.org")
	refused, _ := ask(w, box, `{"host":"cdn.example.org","reason":"cdn"}`)
	w.Run(0, nil, "", "approvals", "deny", refused["id"].(string), "--reason", "use the mirror")
	if again, status := ask(w, box, `{"host":"cdn.example.org","reason":"please"}`); status != "200" || again["state"] != "denied" || again["answer"] != "use the mirror" {
		t.Error(status, again)
	}
	w.NoInternalErrors()
}

// TestFourEyes: an approver key answers and may do nothing else; with four eyes, neither the key that created a box nor a key of
// the box alone answers its requests.
func TestFourEyes(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, func(c *config.Config) { asking(c); c.Approvals.FourEyes = true })
	key := func(body map[string]any) *api.Client {
		var made struct{ Key string }
		if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
			t.Fatal(err)
		}
		return api.NewClient(w.Socket, made.Key)
	}
	creator := key(map[string]any{"name": "platform", "role": "box-creator"})
	var made struct{ ID string }
	if err := creator.Do(t.Context(), "POST", "/v2/box", map[string]any{"name": "job", "network_policy": map[string]any{"mode": "deny-all"}}, &made); err != nil {
		t.Fatal(err)
	}
	one, approver := key(map[string]any{"name": "one", "role": "one-box", "box": "job"}), key(map[string]any{"name": "security", "role": "approver"})
	asked, _ := ask(w, made.ID, `{"host":"www.example.com","reason":"docs"}`)
	path := api.BoxPath(made.ID, "approvals", asked["id"].(string))
	var shown struct{ Candidate struct{ Digest string } }
	if err := approver.Get(t.Context(), path, &shown); err != nil {
		t.Fatal(err)
	}
	yes := map[string]any{"answer": "once", "reason": "docs are fine", "candidate": shown.Candidate.Digest}
	for who, client := range map[string]*api.Client{"creator": creator, "one-box": one} {
		if err := client.Do(t.Context(), "POST", path, yes, nil); err == nil || !strings.Contains(err.Error(), "another API key") {
			t.Errorf("%s: %v", who, err)
		}
	}
	for _, call := range [][2]string{{"GET", "/v2/box"}, {"GET", api.BoxPath(made.ID)}, {"GET", api.BoxPath(made.ID, "config/network-policy")}, {"DELETE", api.BoxPath(made.ID)}, {"GET", "/v2/egress"}} {
		if err := approver.Do(t.Context(), call[0], call[1], nil, nil); err == nil {
			t.Errorf("the approver may %v", call)
		}
	}
	if err := approver.Do(t.Context(), "POST", path, yes, nil); err != nil {
		t.Fatal(err)
	}
	w.MustSh(made.ID, "curl -k -sS -m 60 -f https://www.example.com/")
	harness.Contains(t, w.Run(0, nil, "", "audit", "--json", "--key", "security"), `"answer":"once"`, "docs are fine")
	w.NoInternalErrors()
}

// TestAutomaticApprovalsStayBelowTheCeiling: with automatic approval, a request within the ceiling is approved for a time, without
// a person; one beyond it is refused.
func TestAutomaticApprovalsStayBelowTheCeiling(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		asking(c)
		c.Approvals.Automatic = true
		c.Policy.Ceiling.Spec = policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}}
	})
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	if answer, status := ask(w, box, `{"host":"cdn.example.org","reason":"x"}`); status != "403" {
		t.Error("beyond the ceiling:", status, answer)
	}
	answer, status := ask(w, box, `{"host":"www.example.com","port":80,"reason":"docs","expires_in":600}`)
	if status != "201" || answer["state"] != "once" || answer["until"] == nil {
		t.Fatal(status, answer)
	}
	w.MustSh(box, "curl -sS -m 60 -f http://www.example.com/")
	shut(w, box, "cdn.example.org")
	harness.Contains(t, w.Run(0, nil, "", "audit", "--json"), `"key":"automatic"`, "www.example.com:80")
	w.Event(box, func(e audit.Event) bool { return e.Name == "cdn.example.org" && e.Reason == name.ReasonNotAllowed })
	w.NoInternalErrors()
}
