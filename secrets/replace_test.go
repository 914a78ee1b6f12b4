package secrets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/policy/name"
)

// TestReplace checks that a replaced file has the owner and mode of the old one and the new value as a whole, behind a
// symbolic link too, and that a refused value changes nothing and leaves no file behind.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(real, []byte("old\n"), 0o640), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	source := Source{File: link}
	if err := Replace(map[string]Source{"key": source}, "key", []byte("new-value\n")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(real)
	if err != nil || info.Mode().Perm() != 0o640 || !info.Mode().IsRegular() {
		t.Errorf("%v %v", info, err)
	}
	if to, err := os.Readlink(link); err != nil || to != "real" {
		t.Error(to, err)
	}
	if v, err := readFile(t.Context(), link, source.form()); err != nil || v.Reveal() != "new-value" {
		t.Error("the new value:", err)
	}
	for _, bad := range []string{"", "\n", "two\nlines", "bell\a", strings.Repeat("x", maxValue+1)} {
		if err := Replace(map[string]Source{"key": source}, "key", []byte(bad)); err == nil || strings.Contains(err.Error(), "lines") {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if v, err := readFile(t.Context(), link, source.form()); err != nil || v.Reveal() != "new-value" {
		t.Error("after refused values:", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Error(list, err)
	}
}

// TestReplaceRefusesAnOpenFile: a file that others can read is not given a new secret.
func TestReplaceRefusesAnOpenFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Replace(map[string]Source{"key": {File: path}}, "key", []byte("new")); err == nil || !strings.Contains(err.Error(), "readable") {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("%q %v", b, err)
	}
}

// TestReplaceSaysWhereOtherSourcesAreChanged checks the advice for every kind of source, which must not contain a value.
func TestReplaceSaysWhereOtherSourcesAreChanged(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Source{
		"the variable API_KEY":              {Env: "API_KEY"},
		"the output of vault":               {Command: []string{"vault", "read", "hidden"}},
		"the systemd credential api":        {Credential: "api"},
		"change it there, and run: gateway": {Value: name.NewSecret("hidden")},
	} {
		err := Replace(map[string]Source{"key": s}, "key", []byte("new"))
		advice, ok := errors.AsType[*ReplaceError](err)
		if !ok || !strings.Contains(advice.Advice, want) || strings.Contains(advice.Advice, "hidden") {
			t.Errorf("%q: %v", want, err)
		}
	}
}
