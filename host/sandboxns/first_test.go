package sandboxns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestIsFirst: a process is identified by its cgroup, or else by its start time.
func TestIsFirst(t *testing.T) {
	t.Parallel()
	ours, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	at := func(ago time.Duration) string { return time.Now().Add(-ago).Format(time.RFC3339Nano) }
	for name, c := range map[string]struct {
		group, started string
		first          bool
	}{
		"its group":                       {"0::/system.slice/docker-" + ours + ".scope\n", at(time.Hour), true},
		"its group in another":            {"0::/docker/" + other + "/docker/" + ours + "\n", at(time.Hour), true},
		"its group, version 1":            {"12:pids:/docker/" + ours + "\n0::/system.slice\n", at(time.Hour), true},
		"another's group":                 {"0::/docker/" + other + "\n", at(0), false},
		"no group, with the container":    {"0::/\n", at(0), true},
		"no group, before the container":  {"0::/\n", at(-time.Hour), true},
		"no group, after the container":   {"0::/\n", at(time.Hour), false},
		"no group, a container not begun": {"0::/\n", "0001-01-01T00:00:00Z", false},
		"no group, no time":               {"0::/\n", "", false},
	} {
		err := IsFirst(func(file string) ([]byte, error) {
			if file == "cgroup" {
				return []byte(c.group), nil
			}
			return os.ReadFile(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, file))
		}, ours, c.started)
		if c.first != (err == nil) || err != nil && !errors.Is(err, ErrNotFirst) {
			t.Errorf("%s: %v", name, err)
		}
	}
	gone := errors.New("gone")
	if err := IsFirst(func(string) ([]byte, error) { return nil, gone }, ours, at(0)); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// FuzzAgeOf: the name of a process does not affect its age.
func FuzzAgeOf(f *testing.F) {
	f.Add("sleep")
	f.Add("a) R 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1")
	f.Fuzz(func(t *testing.T, name string) {
		stat := "1 (" + name + ") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 100 20 21"
		plain := "1 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 100 20 21"
		a, err := ageOf([]byte(stat))
		b, err2 := ageOf([]byte(plain))
		if err != nil || err2 != nil || b < a || b-a > time.Minute {
			t.Errorf("%q: %v %v, %v %v", name, a, err, b, err2)
		}
	})
}
