package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/policy"
	"boxgate/rule"
)

// loadText loads a configuration with the text of its file.
func loadText(t *testing.T, text string, environ ...string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "boxgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file, environ)
}

func TestSecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, `
secrets:
  openai: {file: /etc/openai.key, refresh: 1m}
  git-hub: {env: GITHUB_TOKEN}
  vault: {command: [vault, read, -field=v, 1], refresh: 10m, timeout: 3s}
  fixed: {value: 12345}
`, "BOXGATE_SECRETS_OPENAI_REFRESH=5s", "BOXGATE_SECRETS_GIT_HUB_FILE=/run/github", "BOXGATE_SECRETS_NEW_COMMAND=cat,/x", "BOXGATE_SECRETS_FIXED_ENV=FIXED")
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Secrets.Sources
	if o := s["openai"]; o.File != "/etc/openai.key" || o.Refresh != 5*time.Second {
		t.Errorf("openai %+v", o)
	}
	if g := s["git-hub"]; g.File != "/run/github" || g.Env != "" {
		t.Errorf("git-hub %+v", g)
	}
	if v := s["vault"]; strings.Join(v.Command, " ") != "vault read -field=v 1" || v.Refresh != 10*time.Minute || v.Timeout != 3*time.Second {
		t.Errorf("vault %+v", v)
	}
	if n := s["new"]; strings.Join(n.Command, " ") != "cat /x" {
		t.Errorf("new %+v", n)
	}
	if f := s["fixed"]; f.Env != "FIXED" || f.Value.Reveal() != "" || len(s) != 5 {
		t.Errorf("%+v", s)
	}
	cfg, err = loadText(t, "secrets: {fixed: {value: 12345}}")
	if err != nil || cfg.Secrets.Sources["fixed"].Value.Reveal() != "12345" {
		t.Errorf("%+v %v", cfg.Secrets, err)
	}
	if out, err := yaml.Marshal(cfg); err != nil || strings.Contains(string(out), "12345") || !strings.Contains(string(out), "[redacted]") {
		t.Errorf("written as %v %s", err, out)
	}
	for _, empty := range []string{"secrets:\n", "secrets: {}\n", "secrets: null\n"} {
		if cfg, err := loadText(t, empty); err != nil || len(cfg.Secrets.Sources) != 0 {
			t.Errorf("%q: %+v %v", empty, cfg.Secrets, err)
		}
	}
}

// No mistake makes the gateway print a possible secret.
func TestMistakesInSecretsNameTheRemedyAndNoValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"secrets: {a: {value:sk-canary}}":                 `unknown key "secrets.a.value…"; did you mean "secrets.a.value"?`,
		"secrets: {a: {value=sk-canary: 1}}":              `unknown key "secrets.a.value…"`,
		"secrets: {a:sk-canary}":                          `secrets.a…: line 1: use one of`,
		"secrets: {\"a sk-canary\": {file: /x}}":          `"a…" is not a name`,
		"secrets: sk-canary":                              "secrets: line 1: use a map of name to source",
		"secrets: [sk-canary]":                            "secrets: line 1: use a map",
		"secrets:\n  a: sk-canary":                        "secrets.a: line 2: use one of {value:",
		"secrets: {a: [sk-canary]}":                       "secrets.a: line 1: use one of",
		"secrets: {a: {valu: sk-canary}}":                 `unknown key "secrets.a.valu"; did you mean "secrets.a.value"?`,
		"secrets: {a: {vars: sk-canary}}":                 `unknown key "secrets.a.vars"`,
		"secrets: {a: {refesh: 1m, file: /x}}":            `did you mean "secrets.a.refresh"?`,
		"secret: {a: {value: sk-canary}}":                 `unknown key "secret"; did you mean "secrets"?`,
		"secrets: {a: {value: [sk-canary]}}":              "secrets.a.value: line 1: use a single value",
		"secrets: {a: {value: {b: sk-canary}}}":           "secrets.a.value: line 1: use a single value",
		"secrets: {a: {value: \"\"}}":                     "secrets.a.value: line 1: use a single value that is not empty",
		"secrets: {a: {value: }}":                         "secrets.a.value: line 1: use a single value",
		"secrets: {a: {value: *sk-canary}}":               "a value that begins with '*' must be quoted",
		"secrets: {a: {value: \"sk-canary\\n\"}}":         "secrets.a.value: the value ends in a line break",
		"secrets: {a: {value: \"sk\\u00e9canary\"}}":      "secrets.a.value: the value has a byte",
		"secrets: {a: {file: /x, refresh: sk-canary}}":    "secrets.a.refresh: line 1: use a duration such as 1m",
		"secrets: {a: {file: /x, refresh: 0}}":            "secrets.a.refresh: line 1: use a duration",
		"secrets: {a: {command: cat sk-canary}}":          "secrets.a.command: line 1: use a list",
		"secrets: {a: {command: [cat, [sk-canary]]}}":     "secrets.a.command: line 1: each argument is one value",
		"secrets: {a: {}}":                                "secrets.a: has no source",
		"secrets: {a: {value: sk-canary, file: /x}}":      "secrets.a: has several sources",
		"secrets: {\"a b\": {file: /x}}":                  `"a…" is not a name`,
		"secrets: {a: {file: /x}, a: {value: sk-canary}}": `mapping key "a" already defined`,
	} {
		_, err := loadText(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
	}
	for variable, want := range map[string]string{
		"BOXGATE_SECRETS_A_VALUE=sk-canary":   "into BOXGATE_SECRETS_A_ENV",
		"BOXGATE_SECRETS_A=sk-canary":         "unknown variable BOXGATE_SECRETS_A; use BOXGATE_SECRETS_{NAME}_",
		"BOXGATE_SECRETS_A_FIL=sk-canary":     "unknown variable",
		"BOXGATE_SECRETS_FILE=sk-canary":      "unknown variable",
		"BOXGATE_SECRETS_A_REFRESH=sk-canary": "use a duration",
		"BOXGATE_SECRETS_A_FILE=relative":     "secrets.a.file: \"relative\" is not an absolute path",
	} {
		_, err := loadText(t, "", variable)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v, want one with %q", variable, err, want)
		}
	}
	_, err := loadText(t, "secrets: {a: {file: x}, b: sk-canary}\nlog: {level: loud}\ndns: {upstream: []}")
	for _, want := range []string{"secrets.b", "log.level", "dns.upstream"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

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
		rules, err := policy.ParseHeaderRules([]byte(block(section, "json")), rule.Configured(func(name string) bool {
			_, known := cfg.Secrets.Sources[name]
			return known
		}))
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
