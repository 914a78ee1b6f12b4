package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"boxgate/policy"
)

// TestCredentialExamples checks that the configuration and the header rules of each service in docs/credentials.md are
// valid, and that the rules name secrets of that configuration.
func TestCredentialExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")[1:]
	if len(sections) < 8 {
		t.Errorf("there are %d services", len(sections))
	}
	for _, section := range sections {
		service, _, _ := strings.Cut(section, "\n")
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(block(section, "yaml")), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(path, nil)
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		rules, err := policy.ParseHeaderRules([]byte(block(section, "json")), func(name string) bool {
			_, known := cfg.Secrets.Sources[name]
			return known
		})
		if err != nil || len(rules) == 0 {
			t.Errorf("%s: %d rules, %v", service, len(rules), err)
		}
	}
}

// block returns the first code block of a language.
func block(section, language string) string {
	_, rest, _ := strings.Cut(section, "```"+language+"\n")
	code, _, _ := strings.Cut(rest, "```")
	return code
}

// TestRemoteSourcesInTheConfiguration checks that they are parsed strictly, survive encoding, and that errors quote no
// value.
func TestRemoteSourcesInTheConfiguration(t *testing.T) {
	t.Parallel()
	load := func(text string) (Config, error) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path, nil)
	}
	role := `{aws_role: {role_arn: "arn:aws:iam::123456789012:role/x", region: eu-central-1, credentials: k, duration: 30m}}`
	cfg, err := load("secrets: {k: {file: /k, document: true}, r: " + role + "}")
	if err != nil {
		t.Fatal(err)
	}
	written, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(string(written))
	if err != nil || !reflect.DeepEqual(again.Secrets.Sources, cfg.Secrets.Sources) || !again.Secrets.Sources["k"].Document {
		t.Errorf("%v: %+v", err, again.Secrets.Sources)
	}
	for text, want := range map[string]string{
		"secrets: {k: {file: /k}, r: {github_app: {app_id: 1, installation_idd: 2}}}":                            `did you mean "secrets.r.github_app.installation_id"?`,
		"secrets: {r: {github_app: {app_id: [sk-canary]}}}":                                                      "has the wrong type",
		"secrets: {r: {google: {key: sk-canary, scopes: [a]}}}":                                                  "secrets.r.google: names a secret that is not an entry",
		"secrets: {r: {google: {key: r, scopes: [a]}}}":                                                          "depends on itself",
		"secrets: {k: {file: /k}, r: {oauth2: {token_url: \"http://x/\", client_id: a, client_secret: k}}}":      "secrets.r.oauth2.token_url: must begin with https://",
		"secrets: {k: {file: /k}, r: {oauth2: {token_url: \"https://u:p@x/\", client_id: a, client_secret: k}}}": "must be without user",
		"secrets: {k: {file: /k}, r: {file: /r, google: {key: k, scopes: [a]}}}":                                 "has several sources",
		"secrets: {r: {google: sk-canary}}":                                                                      "use a map of its settings",
		"secrets: {r: {credential: ../sk}}":                                                                      "is not the name of a credential",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
