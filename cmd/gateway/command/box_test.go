package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
)

// TestLabelsSelectBoxes: create and attach set labels, label changes them, and list, log and policy set select boxes by
// them. Decisions and policies of other boxes are not touched.
func TestLabelsSelectBoxes(t *testing.T) {
	host := serveInMemory(t)
	open := policy.Spec{Mode: policy.ModeAllowAll}
	host.AddDecision(apitest.Decision("box1", time.Now().Unix(), "other.example", policy.Deny))
	one := host.Add(t, api.CreateRequest{Name: "one", Labels: []string{"team=x"}, Policy: open})
	host.AddDecision(apitest.Decision(policy.BoxID(one), time.Now().Unix(), "first.example", policy.Deny))
	for _, c := range []struct {
		args, has, not string
		status         int
	}{
		{"box create --name two --label team=x --label stage:test", "team=x,stage:test", "", cli.ExitOK},
		{"box create --name bad --label a/b", "--label: must be 1 to 20 letters", "", cli.ExitFailed},
		{"box list --label team=x", "two", "demo", cli.ExitOK},
		{"box list --label team=x", "LABELS", "agent", cli.ExitOK},
		{"box list --label team=y", "ID", "LABELS", cli.ExitOK},
		{"log --label team=x", "first.example", "other.example", cli.ExitOK},
		{"log --label team=x --since 1h", "first.example", "other.example", cli.ExitOK},
		{"log --label team=x --box one", "not both", "first.example", cli.ExitUsage},
		{"log --label team=y", "", "example", cli.ExitOK},
		{"policy set --label team=x deny-all", "two", "demo", cli.ExitOK},
		{"policy set --label team=y deny-all", `no box has the label "team=y"`, "", cli.ExitFailed},
		{"policy set --label team=x one deny-all", "give only the policy", "", cli.ExitUsage},
		{"policy set --label team=x named:none", "the policy was not set for 2 of 2 boxes", "", cli.ExitFailed},
		{"box label demo team=x", "team=x", "", cli.ExitOK},
		{"box label demo more --rm team=x", "more", "team=x", cli.ExitOK},
		{"box label demo more", "more: ", "", cli.ExitFailed},
		{"__complete box list --label t", "team=x", "", cli.ExitOK},
		{"__complete policy set --label team=x preset:np", "preset:npm", "demo", cli.ExitOK},
	} {
		out, status := runCommandLine(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out, c.has) || c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%s: exit %d\n%s", c.args, status, out)
		}
	}
	for name, want := range map[string]policy.Mode{"one": policy.ModeDenyAll, "two": policy.ModeDenyAll, "demo": policy.ModeCustom} {
		if b, err := host.Box(t.Context(), name); err != nil || b.Policy.Spec.Mode != want {
			t.Errorf("%s: %v %v", name, b.Policy.Spec.Mode, err)
		}
	}
	out, _ := runCommandLine(t, "policy", "set", "--label", "team=x", "allow-all", "--json")
	var results []policySet
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results) != 2 || results[0].Version == "" || results[0].Error != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInstallCAIsForContainers: install-ca refuses a launched box and names the command for it.
func TestInstallCAIsForContainers(t *testing.T) {
	serveInMemory(t)
	for args, want := range map[string]string{"box install-ca demo": "gateway ca --box demo --bundle", "box install-ca nope": `"nope"`} {
		if out, status := runCommandLine(t, strings.Fields(args)...); status != cli.ExitFailed || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d\n%s", args, status, out)
		}
	}
}
