package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository copies the toy module into a folder of a new repository, commits it, and returns the module's root.
func repository(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	root := filepath.Join(top, "toy")
	if err := os.CopyFS(root, os.DirFS("testdata/toy")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "toy"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = top
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	return root
}

func TestBaseChoosesWhatChanged(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string // appended
		want       int
	}{
		"nothing":          {"README", "Toy.\n", 0},
		"a mutant":         {"mutants/survives.txtar", "\n", 1},
		"a package":        {"gate/gate.go", "\n// More.\n", 9},
		"a new file of it": {"gate/more.go", "package gate\n", 9},
		"a test":           {"gate/more_test.go", "package gate\n\nimport \"testing\"\n\nfunc TestNothingOfTheDead(t *testing.T) {}\n", 1},
		"another package":  {"other/other.go", "package other\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := repository(t)
			path := filepath.Join(root, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			old, _ := os.ReadFile(path)
			if err := os.WriteFile(path, append(old, c.text...), 0o600); err != nil {
				t.Fatal(err)
			}
			status, out := runCommand(t, "-C", root, "-base", "HEAD", "-list")
			if got := strings.Count(out, "    promise "); status != 0 || got != c.want {
				t.Errorf("status %d, %d mutants, want %d:\n%s", status, got, c.want, out)
			}
		})
	}
}

func TestBaseOfNoRevision(t *testing.T) {
	if status, out := runCommand(t, "-C", repository(t), "-base", "none", "-list"); status != 2 || !strings.Contains(out, "git diff") {
		t.Errorf("status %d: %s", status, out)
	}
	if status, out := runCommand(t, "-C", repository(t), "-base", "HEAD"); status != 0 || !strings.Contains(out, "0 mutants") {
		t.Errorf("status %d: %s", status, out)
	}
}
