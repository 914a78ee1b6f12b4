package cli

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/e2e/harness"
	"boxgate/observe/replay"
)

// replayed asks the gateway to replay a policy.
func replayed(t *testing.T, w *harness.World, box string, policy any) (r spec.Replay) {
	t.Helper()
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "egress/replay"), policy, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// names returns the names in lines.
func namesOf(l replay.Lines) string {
	var names []string
	for _, line := range l.Lines {
		if !slices.Contains(names, line.Name) {
			names = append(names, line.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// attempts are commands whose traffic the policies of the test decide differently. None fails the shell.
var attempts = []string{
	"curl -ksS -m 5 -o /dev/null https://api.example.com/v1/models",
	"curl -ksS -m 5 -o /dev/null -X POST https://api.example.com/v1/files/17?page=2",
	"curl -ksS -m 5 -o /dev/null 'https://api.example.com/v1/list?page=1&size=20'",
	"curl -ksS -m 5 -o /dev/null https://www.example.com/",
	"curl -ksS -m 5 -o /dev/null http://plain.example.com/a/b",
	"curl -ksS -m 5 -o /dev/null http://plain.example.com/x/../a",
	"curl -ksS -m 5 -o /dev/null https://evil.example.net/",
	"curl -ksS -m 5 -o /dev/null https://198.51.100.11/",
	"curl -ksS -m 5 -o /dev/null http://203.0.113.10/",
	"curl -ksS -m 5 -o /dev/null -x http://10.200.0.1:3128 https://cdn.example.org/",
	"curl -ksS -m 5 -o /dev/null -x http://10.200.0.1:3128 http://evil.example.net/",
	"curl -ksS -m 5 -o /dev/null --resolve www.example.com:443:203.0.113.10 https://www.example.com/",
	"getent ahosts other.evil.net",
	"getent ahosts v4only.example.com",
	`python3 -c "import socket;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.connect(('203.0.113.11',9));s.send(b'x')"`,
	`python3 -c "import socket;s=socket.create_connection(('198.51.100.20',22),3);print(s.recv(9))"`,
	`python3 -c "import socket;s=socket.create_connection(('cdn.example.org',22),3);print(s.recv(9))"`,
	`python3 -c "import socket;s=socket.create_connection(('169.254.169.254',80),3)"`,
}

// controlPolicies are policies of different kinds.
var controlPolicies = []map[string]any{
	harness.Custom("api.example.com", "plain.example.com:80"),
	{"mode": "custom", "allowed_domains": []string{"*.example.com", "cdn.example.org"}, "denied_domains": []string{"www.example.com"}, "allowed_cidrs": []string{"203.0.113.0/24"}},
	{"mode": "allow-all"},
	{"mode": "custom", "denied_domains": []string{"*.net"}, "denied_cidrs": []string{"203.0.113.11"}},
	{"mode": "custom", "allowed_cidrs": []string{"198.51.100.0/24"}},
	{"mode": "deny-all"},
	{"mode": "custom", "precedence": "specific", "allowed_domains": []string{"*", "api.example.com"}, "denied_domains": []string{"*.example.com"}},
	{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "rules": []map[string]any{
		{"hosts": []string{"api.example.com"}, "methods": []string{"POST"}, "action": "deny"}, {"hosts": []string{"plain.example.com"}, "paths": []string{"/a/*"}, "action": "deny"}}},
}

// TestReplayReproducesTheRecord runs traffic under policies of all kinds, in random order. Each in force gives again the verdicts that
// it gave, about every decision or with a reason why not.
func TestReplayReproducesTheRecord(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "deny-all"}, "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "secret"}},
	})
	r := rand.New(rand.NewPCG(35, 3))
	reproduced, whys := uint64(0), map[replay.Why]uint64{}
	for _, policy := range controlPolicies {
		w.SetPolicy(box, policy)
		lines := slices.Clone(attempts)
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		w.Sh(box, "( "+strings.Join(lines, "; ")+" ) >/dev/null 2>&1")
		var got spec.Replay
		w.Until("the traffic is summed up", func() bool {
			got = replayed(t, w, box, policy)
			return got.Traffic.Control.Reproduced.Count+got.Traffic.Control.Different.Count >= 10
		})
		for _, l := range got.Traffic.Unknown.Lines {
			if l.Unknown == replay.WhyControl {
				t.Errorf("%v does not reproduce %+v", policy, l)
			}
		}
		if n := got.Traffic.Opens.Count + got.Traffic.Closes.Count + got.Traffic.Partly.Count; n > 0 || len(got.Authority.Gained)+len(got.Authority.Lost) > 0 {
			t.Errorf("%v differs from itself: %+v", policy, got)
		}
		reproduced = got.Traffic.Control.Reproduced.Count
		for why, n := range got.Traffic.Reasons {
			whys[why] = max(whys[why], n.Count)
		}
		t.Logf("%v: %d of %d reproduced, unknown %v", policy, reproduced, got.Traffic.Seen.Count, got.Traffic.Reasons)
	}
	t.Log(whys)
}

// TestReplayOfACandidate: what a replay announces is what then happens, and a dry run changes nothing.
func TestReplayOfACandidate(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	now := harness.Custom("api.example.com", "www.example.com")
	box := w.Create(map[string]any{"network_policy": now})
	candidate := map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com", "evil.example.net"}, "rules": []map[string]any{
		{"hosts": []string{"api.example.com"}, "methods": []string{"POST"}, "action": "deny"}}}
	visit := "for h in api.example.com www.example.com evil.example.net; do curl -ksS -m 5 -o /dev/null https://$h/ && echo $h; done 2>/dev/null; true"
	if got := strings.Fields(w.MustSh(box, visit)); !slices.Equal(got, []string{"api.example.com", "www.example.com"}) {
		t.Fatalf("reached %v", got)
	}
	var got spec.Replay
	w.Until("the traffic is summed up", func() bool {
		got = replayed(t, w, box, candidate)
		return namesOf(got.Traffic.Opens) != "" && namesOf(got.Traffic.Closes) != "" && got.Traffic.Reasons[replay.WhyRequests].Count > 0
	})
	if opens, closes := namesOf(got.Traffic.Opens), namesOf(got.Traffic.Closes); opens != "evil.example.net" || closes != "www.example.com" {
		t.Errorf("opens %s, closes %s", opens, closes)
	}
	text, err := json.Marshal(candidate)
	if err != nil {
		t.Fatal(err)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "replay", box, string(text)), "Would be allowed, and is denied now", "evil.example.net", "requests", "Control: the policy in force reproduces")
	harness.Contains(t, w.Run(0, nil, "", "policy", "diff", box, string(text)), "+ allowed_domains: evil.example.net", "Authority:", "+  name")
	var was struct{ Version uint64 }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &was); err != nil {
		t.Fatal(err)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "diff", fmt.Sprintf("%s@%d", box, was.Version), string(text)), "+ allowed_domains: evil.example.net", "Authority:", "+  name")
	harness.Contains(t, w.Run(0, nil, "", "policy", "lint", box), "There are no findings.")
	var dry spec.Replay
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/network-policy")+"?dry_run=1", candidate, &dry); err != nil || dry.Traffic.Opens.Count == 0 {
		t.Errorf("%v: %+v", err, dry)
	}
	var after struct {
		Version uint64
		Allowed []string `json:"allowed_domains"`
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &after); err != nil || after.Version != 1 || fmt.Sprint(after.Allowed) != "[api.example.com www.example.com]" {
		t.Errorf("after the dry run: %+v %v", after, err)
	}
	w.SetPolicy(box, candidate)
	if got := strings.Fields(w.MustSh(box, visit)); !slices.Equal(got, []string{"api.example.com", "evil.example.net"}) {
		t.Errorf("reached %v with the candidate", got)
	}
}
