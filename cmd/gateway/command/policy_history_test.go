package command

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// TestPolicyHistory: the versions of a policy, one of them with its text, by number and by time, and their differences.
func TestPolicyHistory(t *testing.T) {
	host := serveInMemory(t)
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.Local)
	demo, err := host.Box(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	id := demo.ID
	host.Versions = map[policy.BoxID][]api.PolicyDocument{id: {
		{Box: id, Policy: policy.Spec{Mode: policy.ModeDenyAll}, PolicyVersion: api.PolicyVersion{Version: 6, MadeAt: noon, Cause: "create", Result: "in_force", Since: noon, Until: noon.Add(time.Hour)}},
		{Box: id, Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}}, PolicyVersion: api.PolicyVersion{
			Version: 7, MadeAt: noon.Add(time.Hour), Cause: "set", Key: "dep\x1b[2Jloy", Role: "admin", Remote: "192.0.2.7", Result: "in_force", Since: noon.Add(time.Hour),
		}, Entries: []api.PastLease{{Action: "allow", Entry: "b.example", ExpiresAt: noon.Add(2 * time.Hour)}},
			HeaderRules: []api.PastRules{{Version: 2, Since: noon, Rules: []api.PastRule{{Host: "c.example", Effects: api.Effects{RawMessage: json.RawMessage(`{"headers":["X-Key"]}`)}}}}},
			Ceilings:    []api.PastCeiling{{Version: 1, Since: noon, Policy: &policy.Spec{Mode: policy.ModeAllowAll}}}},
	}}
	for command, want := range map[string][]string{
		"policy history demo":                    {"VERSION", "7", "2026-06-01 13:00:00", "set", `dep\x1b[2Jloy`, "192.0.2.7", "6", "create"},
		"policy history demo --limit 1":          {"There are older versions"},
		"policy show demo@6":                     {"Version 6", "in force from 2026-06-01 12:00:00 to 2026-06-01 13:00:00", "deny-all"},
		"policy show demo":                       {"Version 7", "in force since", "set by dep", "a.example", "temporary: allow b.example until 2026-06-01 14:00:00", "header rules, since 2026-06-01 12:00:00: c.example (headers)", `{"mode":"allow-all"}`},
		"policy show demo --at 2026-06-01T12:30": {"Version 6"},
		"policy diff demo@6 demo@7":              {"a.example"},
		"policy diff demo@7 demo@7":              {"The policies are the same."},
		"policy show demo@7 --json":              {`"version":7`, `"policy":{"mode":"custom"`},
		"policy show demo@9":                     {"version 9 is not in the history"},
		"policy show demo --at 2020-01-01":       {"no version that was in force at 2020-01-01"},
		"policy show demo@7 --at 1h":             {"not both"},
		"policy show demo --at yesterday":        {`--at: "yesterday" is not a time`},
		"policy history demo --limit 0":          {"--limit must be at least 1"},
		"policy history nosuchbox":               {"no box has the ID or name"},
	} {
		out, _ := runCommandLine(t, strings.Fields(command)...)
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is missing in\n%s", command, part, out)
			}
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: the name of a key reaches the terminal: %q", command, out)
		}
	}
}

// FuzzParseBoxVersion: an argument names a version only in one form, and names the box without a change.
func FuzzParseBoxVersion(f *testing.F) {
	for _, seed := range []string{"web-1@7", "web-1", "@policy.json", "web@07", "web@0", "a@b@7", "@7", "web@18446744073709551616"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		v, versioned := parseBoxVersion(arg)
		if versioned && arg != v.box+"@"+strconv.FormatUint(v.version, 10) || !versioned && (v.box != arg || v.version != 0) {
			t.Errorf("%q: %+v %v", arg, v, versioned)
		}
	})
}
