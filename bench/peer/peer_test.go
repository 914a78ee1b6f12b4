package peer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/bench/field"
)

func TestMissingPeersHaveNoVersion(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	missing := map[string]bool{}
	for _, p := range Root(t.TempDir()).All(t.Context()) {
		missing[p.Name] = p.Version == ""
	}
	for _, name := range []string{"HAProxy", "nginx", "Caddy", "unbound", "dnsmasq", "CoreDNS", "mitmproxy", "squid"} {
		if !missing[name] {
			t.Errorf("%s is not missing", name)
		}
	}
	for _, name := range []string{"goproxy", "net/http", Anchor} {
		if missing[name] {
			t.Errorf("%s is missing, which is part of the program", name)
		}
	}
}

func TestVersionOfAProgram(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "usr", "sbin")
	script := "#!/bin/sh\n[ \"$1\" = -v ] && echo 'haproxy version 2.6.12-1 2026' && exit 0\necho usage 9.9; exit 1\n"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "haproxy"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range Root(root).All(t.Context()) {
		if p.Name == "HAProxy" && p.Version != "2.6.12" {
			t.Errorf("got %q", p.Version)
		}
	}
}

func TestPortsDiffer(t *testing.T) {
	seen := map[uint16]string{}
	for _, p := range Root(t.TempDir()).All(t.Context()) {
		for _, r := range p.Roles {
			port := p.Port(r)
			if seen[port] != "" || port < 9000 || port > 9999 { // the range that the field redirects
				t.Errorf("%s listens on %d as %s does", p.Name, port, seen[port])
			}
			seen[port] = p.Name
		}
	}
}

func TestConfigurationsAreComplete(t *testing.T) {
	f := &field.Field{Dir: t.TempDir()}
	e, err := Root(t.TempDir()).environment(f, "x", func(Role) uint16 { return 9123 })
	if err != nil {
		t.Fatal(err)
	}
	files, err := configs.ReadDir("config")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		path, err := e.render(file.Name())
		if err != nil {
			t.Errorf("%s: %v", file.Name(), err)
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "{{") {
			t.Errorf("%s: %v: %s", file.Name(), err, text)
		}
	}
	if len(e.Kilobyte) != 1024 {
		t.Errorf("the answer has %d bytes", len(e.Kilobyte))
	}
}
