package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRPM: rpmbuild makes the same package twice from the same files, with the files of the Debian package, without
// compiling, for either architecture.
func TestRPM(t *testing.T) {
	if _, err := exec.LookPath("rpmbuild"); err != nil {
		t.Fatal("rpmbuild is missing: make deps installs it")
	}
	t.Chdir("../..") // like main
	program := filepath.Join(t.TempDir(), "gateway")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	info := debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "boxgate", Version: "v1.2.3-rc.1"}}
	for _, p := range programs {
		for _, arch := range architectures {
			b := binary{program: p, path: program, arch: arch, info: &info, date: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
			var packages []string
			for _, zone := range []string{"UTC", "Asia/Kathmandu"} {
				t.Setenv("TZ", zone)
				path, err := b.packRPM(t.Context(), t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				if want := p.pkg + "-1.2.3~rc.1-1." + rpmArchitectures[arch] + ".rpm"; filepath.Base(path) != want {
					t.Errorf("it is named %s, want %s", filepath.Base(path), want)
				}
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				packages = append(packages, string(text))
				checkFiles(t, b, path)
			}
			if packages[0] != packages[1] {
				t.Errorf("two packages of %s for %s differ", p.pkg, arch)
			}
		}
	}
}

// checkFiles compares the files of an RPM package with those of the Debian one, which differ in zsh's directory, and
// checks that its configuration files are kept at upgrades.
func checkFiles(t *testing.T, b binary, path string) {
	t.Helper()
	tree, err := b.stage()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tree)
	for _, f := range query(t, "-l", path) {
		f = strings.ReplaceAll(f, "site-functions", "vendor-completions")
		if err := os.Remove(filepath.Join(tree, f)); err != nil && !strings.HasSuffix(err.Error(), "directory not empty") {
			t.Error(err)
		}
	}
	left := exec.CommandContext(t.Context(), "find", tree, "-type", "f")
	if out, err := left.Output(); err != nil || len(out) > 0 {
		t.Errorf("%s lacks %s: %v", path, out, err)
	}
	config := []string{"/etc/boxgate/boxgate.yaml", "/etc/boxgate/environment"}
	if got := query(t, "-c", path); b.service && !slices.Equal(got, config) || !b.service && len(got) > 0 {
		t.Errorf("the configuration files of %s are %q", path, got)
	}
}

// query returns the lines that rpm prints about a package.
func query(t *testing.T, flag, path string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "rpm", "-qp", flag, path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}
