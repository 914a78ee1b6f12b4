package cli

import (
	"strings"
	"testing"
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
