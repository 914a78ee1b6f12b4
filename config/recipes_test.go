package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/rule"
)

// TestRecipes holds that the configuration of each recipe in docs/recipes.md is accepted, and that its header rules, or its policy, are
// too and name secrets of that configuration.
func TestRecipes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")[1:]
	if len(sections) < 5 {
		t.Errorf("there are %d recipes", len(sections))
	}
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(block(section, "yaml")), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(path, nil)
		if err != nil {
			t.Errorf("%s: %v", title, err)
			continue
		}
		document := []byte(block(section, "json"))
		if len(document) == 0 {
			continue
		}
		var spec policy.Spec
		if json.Unmarshal(document, &spec) == nil && spec.Mode != "" {
			if _, err := policy.Compile(spec, policy.Options{}); err != nil {
				t.Errorf("%s: %v", title, err)
			}
			continue
		}
		_, err = policy.ParseHeaderRules(document, rule.Configured(func(name string) bool {
			_, known := cfg.Secrets.Sources[name]
			return known
		}))
		if err != nil {
			t.Errorf("%s: %v", title, err)
		}
	}
}
