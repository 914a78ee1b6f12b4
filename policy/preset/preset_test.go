package preset

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestPresets: every file is what it should be, and compiles. Each host has a port, so that a preset for HTTPS does not open
// SSH or mail; none is a wildcard, whose names anybody might register.
func TestPresets(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"anthropic", "crates", "debian", "docker-hub", "github", "github-ssh", "npm", "openai", "pypi", "pypi-upload"} {
		if !slices.Contains(Names(), want) {
			t.Errorf("there is no preset %s", want)
		}
	}
	for _, label := range Names() {
		checkFile(t, label)
		p, err := Find(label)
		if err != nil || p.Name != label || p.Version < 1 || p.About == "" || !strings.HasPrefix(p.Source, "https://") || len(p.AllowedDomains) == 0 {
			t.Errorf("%s: %+v %v", label, p, err)
		}
		spec, err := Policy(label)
		if err != nil {
			t.Fatal(err)
		}
		compiled, err := policy.Compile(spec, policy.Options{Version: 1, Protected: &name.Protected{}})
		if err != nil || len(compiled.Warnings()) > 0 {
			t.Errorf("%s: %v %v", label, err, compiled.Warnings())
		}
		for _, host := range p.AllowedDomains {
			if pattern, err := name.ParsePattern(host); err != nil || pattern.Port() == 0 || pattern.IsWildcard() || pattern.String() != host {
				t.Errorf("%s: %q is not a canonical name with a port: %v", label, host, err)
			}
		}
	}
}

// checkFile requires a file without unknown fields.
func checkFile(t *testing.T, name string) {
	t.Helper()
	data, err := files.ReadFile("data/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&Preset{}); err != nil || strings.ToLower(name) != name {
		t.Errorf("%s: %v", name, err)
	}
}

// TestPresetsOpenOneProtocol: SSH and uploads at other hosts than those of downloads are presets of their own.
func TestPresetsOpenOneProtocol(t *testing.T) {
	t.Parallel()
	for _, label := range Names() {
		hosts, err := Hosts(label)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range hosts {
			ssh, upload := strings.HasSuffix(label, "-ssh"), strings.HasSuffix(label, "-upload")
			isSSH := strings.HasSuffix(host, ":22")
			isUpload := host == "upload.pypi.org:443" || host == "central.sonatype.com:443"
			if isSSH != ssh || isUpload != upload {
				t.Errorf("%s has %s", label, host)
			}
		}
	}
}

// TestPolicy: several presets are one list, each host once; a name that does not exist is an error with those that do, and
// opens nothing.
func TestPolicy(t *testing.T) {
	t.Parallel()
	both, err := Policy("github, pypi,github")
	if err != nil || both.Mode != policy.ModeCustom {
		t.Fatal(both, err)
	}
	github, _ := Find("github")
	pypi, _ := Find("pypi")
	if want := append(slices.Clone(github.AllowedDomains), pypi.AllowedDomains...); !slices.Equal(both.AllowedDomains, want) {
		t.Errorf("%q, want %q", both.AllowedDomains, want)
	}
	for _, names := range []string{"", "github,", "gitub", "../preset", "data/github"} {
		if spec, err := Policy(names); err == nil || len(spec.AllowedDomains) > 0 || !strings.Contains(err.Error(), "github, github-ssh, gitlab") {
			t.Errorf("%q: %+v %v", names, spec, err)
		}
	}
}
