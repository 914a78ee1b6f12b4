package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestHostsBesidePresets: a list of presets may contain single hosts and addresses.
func TestHostsBesidePresets(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"preset:npm,example.com,*.corp.example:22": `"example.com","*.corp.example:22"]`,
		"preset:example.com":                       `{"mode":"custom","allowed_domains":["example.com"]`,
		"preset:npm,192.0.2.1":                     `"allowed_cidrs":["192.0.2.1"]`,
	} {
		got, err := PolicyArgument(arg, PolicyHelp, strings.NewReader(""))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %s %v", arg, got, err)
		}
	}
	for arg, want := range map[string]string{"preset:npn,example.com": `no preset "npn"`, "preset:npm,https://a.example/": "is a URL", "preset:": "no preset"} {
		if got, err := PolicyArgument(arg, PolicyHelp, strings.NewReader("")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s %v", arg, got, err)
		}
	}
}

func TestDurationTakesDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "0s": 0, "-1h": -1, "1w": -1, "5": -1, "": -1} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		var d, other time.Duration
		Duration(f, &d, "for", 0, "how long")
		Duration(f, &other, "other", time.Minute, "how long")
		err := f.Parse([]string{"--for", text})
		if want >= 0 && (err != nil || d != want) || want < 0 && err == nil {
			t.Errorf("%q: %s %v", text, d, err)
		}
		if usage := f.FlagUsages(); other != time.Minute || strings.Count(usage, "default") != 1 || !strings.Contains(usage, "(default 1m0s)") {
			t.Errorf("%s\n%s", other, usage)
		}
	}
}

// TestPolicyInYAML: files and standard input may have policies in YAML, such as the output of `gateway policy learn`. A mistake in JSON
// stays a mistake, and inline text is JSON.
func TestPolicyInYAML(t *testing.T) {
	t.Parallel()
	const text = "# a comment\nmode: custom\nallowed_domains:\n  - \"a.test:443\"  # 3 times\nrules:\n  - {\"hosts\":[\"a.test\"],\"action\":\"deny\"}\n"
	got, err := PolicyArgument("-", BoxPolicyHelp, strings.NewReader(text))
	if err != nil || string(got) != `{"allowed_domains":["a.test:443"],"mode":"custom","rules":[{"action":"deny","hosts":["a.test"]}]}` {
		t.Errorf("%s, %v", got, err)
	}
	for arg, stdin := range map[string]string{text: "", "-": "{\"mode\": \"deny-all\",}", "- ": "mode: deny-all"} {
		if got, err := PolicyArgument(arg, BoxPolicyHelp, strings.NewReader(stdin)); err == nil {
			t.Errorf("%q %q: %s", arg, stdin, got)
		}
	}
	for _, stdin := range []string{"mode: deny-all\nmode: allow-all\n", "allowed_domains: []\n", "- mode: deny-all\n", "mode: &a [*a]\n"} {
		if got, err := PolicyArgument("-", BoxPolicyHelp, strings.NewReader(stdin)); err == nil {
			t.Errorf("%q: %s", stdin, got)
		}
	}
}
