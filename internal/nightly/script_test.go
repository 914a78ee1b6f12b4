package nightly

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// rig is a repository with the script and a fake make that records its calls, and fails on request.
type rig struct {
	t   *testing.T
	dir string
}

const fakeMake = `#!/bin/bash
echo "$1 nightly=$BOXGATE_NIGHTLY" >>"$RIG/calls"
echo "output of $1"
[ ! -e "$RIG/fail-$1" ]
`

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	script, err := os.ReadFile(filepath.Join(root, "dist/nightly.sh"))
	if err != nil {
		t.Fatal(err)
	}
	r.write("repo/dist/nightly.sh", string(script))
	r.write("bin/make", fakeMake)
	r.run("git", "init", "-q")
	r.run("git", "add", ".")
	r.commit()
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) commit() { r.t.Helper(); r.run("git", "commit", "-q", "--allow-empty", "-m", "x") }

func (r *rig) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), name, args...)
	cmd.Dir = filepath.Join(r.dir, "repo")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") { // in a git hook, these select another repository
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"), "RIG="+r.dir, "NIGHTLY_DIR="+filepath.Join(r.dir, "nightly"),
		"HOME="+r.dir, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	return cmd
}

func (r *rig) run(name string, args ...string) {
	r.t.Helper()
	if out, err := r.command(name, args...).CombinedOutput(); err != nil {
		r.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// nightly runs the script and returns its output, its calls of make, and whether it succeeded.
func (r *rig) nightly(parts ...string) (out, calls string, ok bool) {
	r.t.Helper()
	_ = os.Remove(filepath.Join(r.dir, "calls"))
	text, err := r.command("dist/nightly.sh", parts...).CombinedOutput()
	made, _ := os.ReadFile(filepath.Join(r.dir, "calls"))
	return string(text), string(made), err == nil
}

func TestPartsAreRememberedByCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write("fail-race", "")
	out, calls, ok := r.nightly("fuzz", "race")
	if ok || calls != "fuzz nightly=1\nrace nightly=\n" || !strings.Contains(out, "\nrace         FAILED") || !strings.Contains(out, "\nfuzz         passed") || !strings.Contains(out, "\nmutants      not run") {
		t.Fatalf("a part that fails: %v, %q\n%s", ok, calls, out)
	}
	if err := os.Remove(filepath.Join(r.dir, "fail-race")); err != nil {
		t.Fatal(err)
	}
	if out, calls, ok := r.nightly("fuzz", "race"); !ok || calls != "race nightly=\n" || !strings.Contains(out, "\nrace         passed") {
		t.Errorf("at the same commit: %v, %q\n%s", ok, calls, out)
	}
	if logs, err := filepath.Glob(filepath.Join(r.dir, "nightly/*/fuzz.log")); err != nil || len(logs) != 1 {
		t.Errorf("logs: %q, %v", logs, err)
	}
	r.write("repo/changed", "")
	for range 2 {
		if out, calls, ok := r.nightly("fuzz"); !ok || calls != "fuzz nightly=1\n" {
			t.Errorf("with changes: %v, %q\n%s", ok, calls, out)
		}
	}
	r.run("git", "add", ".")
	r.commit()
	if out, calls, ok := r.nightly("fuzz"); !ok || calls != "fuzz nightly=1\n" {
		t.Errorf("at another commit: %v, %q\n%s", ok, calls, out)
	}
	if out, calls, ok := r.nightly("fuzzing"); ok || calls != "" || !strings.Contains(out, "no such part: fuzzing") {
		t.Errorf("a part that is none: %v, %q\n%s", ok, calls, out)
	}
}
