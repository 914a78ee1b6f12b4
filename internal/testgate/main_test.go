package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the command.
func TestMain(m *testing.M) {
	if os.Getenv("TESTGATE_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

// module writes a module named tiny with the given files, and returns its folder.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module tiny\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// once is the body of a test that fails unless it ran before, in the same folder.
const once = `
	if _, err := os.Stat("marker-" + t.Name()); err != nil {
		os.WriteFile("marker-"+t.Name(), nil, 0o644)
		t.Error("the first run of", t.Name())
	}
`

func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TESTGATE_COMMAND=1", "GOWORK=off")
	return cmd
}

// outcome is the output and the exit status of the command.
type outcome struct {
	text   string
	status int
}

func testgate(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	cmd := command(t, dir, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || !exit.Exited()) {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return outcome{out.String(), cmd.ProcessState.ExitCode()}
}

// check compares the exit status and the last line, and looks for expressions that must and, after a "!", must not match.
func (o outcome) check(t *testing.T, status int, last string, expressions ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(o.text, "\n"), "\n")
	if o.status != status || lines[len(lines)-1] != last {
		t.Errorf("status %d and %q at the end; want %d and %q", o.status, lines[len(lines)-1], status, last)
	}
	for _, expression := range expressions {
		expression, not := strings.CutPrefix(expression, "!")
		if regexp.MustCompile("(?m)"+expression).MatchString(o.text) == not {
			t.Errorf("%q matches: %v; want the opposite", expression, !not)
		}
	}
	if t.Failed() {
		t.Log(o.text)
	}
}

func TestPasses(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"a/a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Log(\"quiet\"); t.Run(\"sub\", func(t *testing.T) {}) }\nfunc TestB(t *testing.T) { t.Skip(\"no\") }\n",
		"b/b.go":      "package b\n",
	})
	log := filepath.Join(t.TempDir(), "log")
	testgate(t, dir, "-slow", "-log", log, "--", "-count=1", "-timeout", "1m", "./...").check(t, 0, "1 passed, 0 failed, 1 skipped",
		`^ok  \ttiny/a\t\d`, `^\?   \ttiny/b\t\[no test files\]$`, "!quiet", "!PASS", "!FAIL", "slowest packages:\n.*tiny/a\n", "slowest tests:\n.*tiny/a TestA\n")
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), `"Action":"pass","Package":"tiny/a","Test":"TestA"`) {
		t.Errorf("the log: %v\n%s", err, text)
	}
	testgate(t, dir, "--", "-v", "./...").check(t, 0, "1 passed, 0 failed, 1 skipped", "a_test.go:3: quiet", "^    --- PASS: TestA/sub", "^--- SKIP: TestB", `^PASS$\n^ok  \ttiny/a`)
	testgate(t, dir, "--", "-v", "-run=TestA", "./a").check(t, 0, "1 passed, 0 failed, 0 skipped", "quiet", "!TestB")
}

func TestPassesOnTheSecondTry(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"a/a_test.go": "package a\nimport (\"os\"; \"testing\")\nfunc TestOnce(t *testing.T) {" + once + "}\nfunc TestMore(t *testing.T) { t.Run(\"sub\", func(t *testing.T) {" + strings.ReplaceAll(once, "t.Name()", `"more"`) + "}) }\nfunc TestOther(t *testing.T) { if os.Getenv(\"ENV\") == \"\" { f, _ := os.OpenFile(\"ran\", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); f.WriteString(\"x\") } }\n",
	})
	testgate(t, dir, "--", "-count=1", "./...").check(t, 0, "3 passed, 0 failed, 0 skipped",
		`^ok  \ttiny/a\t\d`, "!^FAIL", "!^ *--- FAIL.*\n(?s:.*)repeating", "^passed on the second try: tiny/a TestOnce\n    --- FAIL: TestOnce.*\n.*a_test.go:6: the first run of TestOnce$",
		"^passed on the second try: tiny/a TestMore\n    --- FAIL: TestMore.*\n.*--- FAIL: TestMore/sub.*\n.*the first run of more$")
	if ran, err := os.ReadFile(filepath.Join(dir, "a/ran")); err != nil || string(ran) != "x" {
		t.Errorf("TestOther ran %q, %v; only what failed is repeated", ran, err)
	}
}

func TestFailsTwice(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"a/a_test.go": "package a\nimport \"testing\"\nfunc TestBad(t *testing.T) { t.Error(\"always\") }\nfunc TestGood(t *testing.T) { t.Log(\"quiet\") }\n",
		"b/b_test.go": "package b\nimport \"testing\"\nfunc TestGood(t *testing.T) {}\n",
	})
	testgate(t, dir, "--", "./...").check(t, 1, "2 passed, 1 failed, 0 skipped",
		"(?s)a_test.go:3: always.*failed again.*a_test.go:3: always", `^FAIL\ttiny/a\t(?s:.*)^FAIL$`, `^ok  \ttiny/b`, "!quiet", "!second try",
		`^failed: tiny/a TestBad\n    --- FAIL: TestBad.*\n .*a_test.go:3: always\nFAIL\n2 passed`)
}

func TestNeverRepeats(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]string{"attack": "TestAttackOnce", "secret": "TestNoSECRETOnce", "lost": "TestEventsLostOnce"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := module(t, map[string]string{"a/a_test.go": "package a\nimport (\"os\"; \"testing\")\nfunc " + test + "(t *testing.T) {" + once + "}\n"})
			testgate(t, dir, "--", "./...").check(t, 1, "0 passed, 1 failed, 0 skipped", "a_test.go:6: the first run", "not repeated: its name says "+name, "!repeating")
		})
	}
}

func TestListedIsNotRepeated(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"a/a_test.go": "package a\nimport (\"os\"; \"testing\")\nfunc TestOnce(t *testing.T) {" + once + "}\n",
		"list":        "# a comment\n\ntiny/a TestOnce 2026-01-31 reads two events as one\n",
	})
	testgate(t, dir, "-flaky", "list", "--", "./...").check(t, 1, "0 passed, 1 failed, 0 skipped", `not repeated: its cause is known since 2026-01-31 \(reads two events as one\)`, "!repeating")
}

func TestTooManyAreNotRepeated(t *testing.T) {
	t.Parallel()
	text := "package a\nimport (\"os\"; \"testing\")\n"
	for i := range maxRepeats + 1 {
		text += "func TestOnce" + strconv.Itoa(i) + "(t *testing.T) {" + once + "}\n"
	}
	dir := module(t, map[string]string{"a/a_test.go": text})
	testgate(t, dir, "--", "./...").check(t, 1, "0 passed, 6 failed, 0 skipped", "6 tests failed: none is repeated", "the first run of TestOnce5", "!repeating tiny")
}

func TestBrokenPackagesAreNotRepeated(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a dozen test binaries")
	}
	for name, c := range map[string]struct{ text, last, want string }{
		"build":   {"func TestX(t *testing.T) { undefined() }", "0 passed, 1 failed, 0 skipped", `undefined: undefined(?s:.*)^FAIL\ttiny/a \[build failed\]`},
		"vet":     {"func TestX(t *testing.T) { t.Errorf(\"%d\", \"x\") }", "0 passed, 1 failed, 0 skipped", `wrong type string(?s:.*)^FAIL\ttiny/a`},
		"panic":   {"func TestX(t *testing.T) { panic(\"oh\") }", "0 passed, 1 failed, 0 skipped", `^panic: oh(?s:.*)^goroutine(?s:.*)^FAIL\ttiny/a`},
		"timeout": {"func TestX(t *testing.T) { select {} }", "0 passed, 1 failed, 0 skipped", `^panic: test timed out after 1s(?s:.*)^FAIL\ttiny/a`},
		"exit":    {"func TestX(t *testing.T) { t.Log(\"seen\"); os.Exit(3) }", "0 passed, 1 failed, 0 skipped", `seen(?s:.*)^FAIL\ttiny/a`},
		"main":    {"func TestX(t *testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); println(\"left over\"); os.Exit(1) }", "1 passed, 1 failed, 0 skipped", `left over(?s:.*)^FAIL\ttiny/a(?s:.*)^failed: tiny/a\n(?s:.*)left over`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := module(t, map[string]string{"a/a_test.go": "package a\nimport (\"os\"; \"testing\")\nvar _ = os.Exit\n" + c.text + "\n"})
			testgate(t, dir, "--", "-timeout=1s", "./...").check(t, 1, c.last, c.want, "!repeating", "!second try")
			testgate(t, dir, "--", "-v", "-timeout=1s", "./...").check(t, 1, c.last, c.want, "!repeating", "!second try")
		})
	}
}

func TestNoPackages(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{"a/a.go": "package a\n"})
	if o := testgate(t, dir, "--", "./nowhere"); o.status != 1 {
		t.Errorf("status %d\n%s", o.status, o.text)
	}
	if o := testgate(t, dir, "--", "-timeout=x", "./a"); o.status != 1 || !strings.Contains(o.text, "invalid value") {
		t.Errorf("status %d\n%s", o.status, o.text)
	}
}

// TestInterrupt interrupts the command while a test runs, and requires that the test ends as well.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{"a/a_test.go": `package a
import ("fmt"; "os"; "testing")
func TestWaits(t *testing.T) {
	os.WriteFile("new", fmt.Append(nil, os.Getpid()), 0o644)
	os.Rename("new", "pid")
	select {}
}
`})
	cmd := command(t, dir, "--", "./...")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	var pid int
	for pid == 0 {
		text, _ := os.ReadFile(filepath.Join(dir, "a/pid"))
		pid, _ = strconv.Atoi(string(text))
		select {
		case <-exited:
			t.Fatalf("ended too early\n%s", out.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-exited
	if status := cmd.ProcessState.ExitCode(); status != 130 {
		t.Errorf("status %d, want 130\n%s", status, out.String())
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the test still runs: %v", err)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	id := testID{"boxgate/x", "TestX"}
	for _, c := range []struct{ args, packages, all, only string }{
		{"-timeout 30m ./...", "./...", "-timeout 30m ./...", "-timeout 30m -count=1 -run=^TestX$ boxgate/x"},
		{"-v -race -run TestY -count 3 ./a ./b", "./a ./b", "-v -race -run TestY -count 3 ./a ./b", "-race -count=1 -run=^TestX$ boxgate/x"},
		{"-json -v=false -cover=true --tags=a -coverprofile=f -p 2 ./a", "./a", "-cover=true --tags=a -coverprofile=f -p 2 ./a", "-cover=true --tags=a -p 2 -count=1 -run=^TestX$ boxgate/x"},
		{"-test.run X ./a -args -v b", "./a", "-test.run X ./a -args -v b", "-count=1 -run=^TestX$ boxgate/x -args -v b"},
	} {
		a := parseArguments(strings.Fields(c.args))
		if !slices.Equal(a.packages, strings.Fields(c.packages)) || strings.Join(a.all(), " ") != c.all || strings.Join(a.only(id), " ") != c.only {
			t.Errorf("%s: packages %q, all %q, only %q", c.args, a.packages, a.all(), a.only(id))
		}
	}
}
