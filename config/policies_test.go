package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"boxgate/policy"
)

// TestPoliciesOfTheOperator reads the default and the ceiling from file and environment.
func TestPoliciesOfTheOperator(t *testing.T) {
	for _, c := range []struct {
		name, file        string
		env               []string
		standard, ceiling policy.Mode
		fails             string
	}{
		{"nothing", "", nil, policy.ModeAllowAll, "", ""},
		{"a mode", "policy: {default: deny-all}", nil, policy.ModeDenyAll, "", ""},
		{"documents", "policy:\n  default: {mode: custom, allowed_domains: [a.test]}\n  ceiling: {mode: custom, denied_cidrs: [192.0.2.0/24]}", nil, policy.ModeCustom, policy.ModeCustom, ""},
		{"no ceiling", "policy: {ceiling: null}", nil, policy.ModeAllowAll, "", ""},
		{"a mode by variable", "", []string{"BOXGATE_POLICY_DEFAULT=deny-all"}, policy.ModeDenyAll, "", ""},
		{"a document by variable", "", []string{`BOXGATE_POLICY_CEILING={"mode":"custom","denied_domains":["a.test"]}`}, policy.ModeAllowAll, policy.ModeCustom, ""},
		{"no default", `policy: {default: ""}`, nil, "", "", "policy.default: is empty"},
		{"a wrong mode", "policy: {default: open}", nil, "", "", "policy.default: "},
		{"a wrong entry", "policy: {ceiling: {mode: custom, denied_cidrs: [10.0.0.1/8]}}", nil, "", "", "policy.ceiling: /denied_cidrs/0"},
		{"a rule that allows", "policy: {ceiling: {mode: allow-all, rules: [{hosts: [a.test], action: allow}]}}", nil, "", "", "policy.ceiling: /rules/0/action"},
		{"an unknown key", "policy: {cieling: deny-all}", nil, "", "", `did you mean "policy.ceiling"?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "boxgate.yaml")
			if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := Load(path, c.env)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, want %q", err, c.fails)
				}
				return
			}
			if err != nil || cfg.Policy.Default.Spec.Mode != c.standard || cfg.Policy.Ceiling.Spec.Mode != c.ceiling {
				t.Fatalf("%+v %v", cfg.Policy, err)
			}
			written, err := yaml.Marshal(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, written, 0o600); err != nil {
				t.Fatal(err)
			}
			again, err := Load(path, nil)
			if err != nil || again.Policy.Default.Spec.Mode != c.standard || again.Policy.Ceiling.Spec.Mode != c.ceiling {
				t.Errorf("written and read again: %+v %v", again.Policy, err)
			}
		})
	}
}
