package secrets

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// loggedStderr returns the logged part of a command's standard error.
func loggedStderr(t *testing.T, source Source) (stderr, failure string) {
	t.Helper()
	s, logs := single(t, source)
	_, err := s.Secret(t.Context(), "s")
	if err == nil {
		t.Fatal("the command did not fail")
	}
	all := logs.FilterMessage("a secret could not be refreshed").All()
	if len(all) != 1 {
		t.Fatalf("logged %d times", len(all))
	}
	stderr, _ = all[0].ContextMap()["stderr"].(string)
	return stderr, err.Error()
}

func TestFailingCommands(t *testing.T) {
	t.Parallel()
	writable := script(t, "echo x")
	if err := os.Chmod(writable, 0o777); err != nil {
		t.Fatal(err)
	}
	for want, argv := range map[string][]string{
		"it ended with status 3":                 {script(t, "echo "+canary+"; exit 3")},
		"it ended by a signal: terminated":       {script(t, "echo "+canary+"; kill -TERM $$")},
		"no such file or directory":              {"/nonexistent/program"},
		"there is no such program in /usr/local": {"no-such-program-anywhere"},
		"is not a program":                       {file(t, "x")},
		"is world-writable":                      {writable},
		"it is empty":                            {"true"},
		"it is longer than 8192 bytes":           {"yes", canary},
	} {
		s, _ := single(t, Source{Command: argv})
		fails(t, s, "s", "command "+argv[0], want)
	}
	for _, argv := range [][]string{{"/nonexistent/program"}, {"no-such-program-anywhere"}, {file(t, "x")}, {writable}} {
		if err := Check(t.Context(), map[string]Source{"s": {Command: argv}}); err == nil || !strings.Contains(err.Error(), "secrets.s: command ") {
			t.Errorf("check says %v about %v", err, argv)
		}
	}
	ran := filepath.Join(t.TempDir(), "ran")
	if err := Check(t.Context(), map[string]Source{"s": {Command: []string{"touch", ran}}}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("check ran the command")
	}
}

// A command gets no shell, environment, input or directories of the gateway.
func TestACommandRunsBare(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	if err := os.Setenv("SECRETS_TEST_NOT_FOR_CHILDREN", "x"); err != nil {
		t.Fatal(err)
	}
	program := script(t, fmt.Sprintf(`{ env | sort | cut -d= -f1 | tr '\n' ' '; pwd; wc -c; ls -l /proc/self/fd | grep -c socket; printf '%%s\n' "$@"; } > %s; echo v`, out))
	s, _ := single(t, Source{Command: []string{program, "$HOME", "a b", "`id`"}})
	wants(t, s, "s", "v")
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(data); got != "HOME LANG PATH PWD /\n0\n0\n$HOME\na b\n`id`\n" && got != "HOME LANG OLDPWD PATH PWD /\n0\n0\n$HOME\na b\n`id`\n" {
		t.Errorf("the command saw %q", got)
	}
}

// A command that does not end is killed with everything it started.
func TestATimeoutKillsTheGroup(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	program := script(t, fmt.Sprintf("sleep 1000 & echo $! > %s.new; echo $$ >> %s.new; mv %s.new %s; echo canary; trap '' TERM; wait", pids, pids, pids, pids))
	s, _ := single(t, Source{Command: []string{program}, Timeout: 2 * time.Second})
	fails(t, s, "s", "did not end in time and was killed")
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Fields(string(data)) {
		eventually(t, "process "+p+" is gone", func() bool { return !alive(t, p) })
	}
}

// A process that a command leaves in its group is killed and does not delay the value.
func TestWhatACommandLeavesBehindIsKilled(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	s, _ := single(t, Source{Command: []string{script(t, "sleep 1000 & echo $! > "+pid+"; echo v")}, Timeout: time.Minute})
	wants(t, s, "s", "v")
	data, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return !alive(t, strings.TrimSpace(string(data))) })
}

// alive reports whether a process is running; a zombie is not.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && unix.Kill(n, 0) == nil && !strings.Contains(string(stat), ") Z ")
}

func TestCloseKillsTheCommand(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	s, _ := single(t, Source{Command: []string{script(t, "echo $$ > "+pid+".new; mv "+pid+".new "+pid+"; sleep 1000")}, Timeout: time.Minute})
	var data []byte
	eventually(t, "it runs", func() bool { data, _ = os.ReadFile(pid); return len(data) > 0 })
	s.Close()
	eventually(t, "it is gone", func() bool { return !alive(t, strings.TrimSpace(string(data))) })
}

// The log shows a bounded, escaped part of a command's standard error, without its standard output; the error shows no
// part of it.
func TestWhatTheLogShowsOfACommand(t *testing.T) {
	t.Parallel()
	stderr, failure := loggedStderr(t, Source{Command: []string{script(t, `echo `+canary+`; printf 'denied: token %s\n\033[31mred\r\n' `+canary+` >&2; exit 1`)}})
	if stderr != `denied: token [redacted]\x0a\x1b[31mred` {
		t.Errorf("the log shows %q", stderr)
	}
	if strings.Contains(failure, "denied") || strings.Contains(failure, canary) {
		t.Errorf("the error shows %q", failure)
	}
	stderr, _ = loggedStderr(t, Source{Command: []string{script(t, "yes longline | head -c 1000000 >&2; exit 1")}})
	if len(stderr) == 0 || len(stderr) > shownStderr {
		t.Errorf("%d bytes are logged", len(stderr))
	}
}

// A command's standard error may contain the value: the previous one, or so many copies that the captured part ends
// within one.
func TestAttackACommandThatSaysTheValue(t *testing.T) {
	t.Parallel()
	again := filepath.Join(t.TempDir(), "again")
	for what, text := range map[string]string{
		"the value of before": "if [ -e " + again + " ]; then echo 'login with " + canary + " failed' >&2; exit 1; fi; touch " + again + "; echo " + canary,
		"cut off":             "v=" + canary + strings.Repeat("a", 200) + "; echo $v; for i in $(seq 30); do printf '%s ' $v >&2; done; exit 1",
		"a part of it first":  "echo sk-canary-91; echo " + canary + "; printf '" + canary + "' >&2; exit 1",
		"on several lines":    "echo first; echo " + canary + "; printf 'first " + canary + "' >&2; exit 1",
	} {
		s, logs := single(t, Source{Command: []string{script(t, text)}, Refresh: minRefresh})
		var shows string
		eventually(t, what+": a failure is logged", func() bool {
			_, _ = s.Secret(t.Context(), "s")
			all := logs.FilterMessage("a secret could not be refreshed").All()
			if len(all) > 0 {
				shows, _ = all[0].ContextMap()["stderr"].(string)
			}
			return len(all) > 0
		})
		if !strings.Contains(shows, "[redacted]") || strings.Contains(shows, canary[:5]) || strings.Contains(shows, canary[12:]) {
			t.Errorf("%s: the log shows %q", what, shows)
		}
	}
}
