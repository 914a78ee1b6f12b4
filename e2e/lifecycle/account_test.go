package lifecycle

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestAccountOfABox: a box that was created with another user and home directory has them in each part of the API, where relative paths
// begin, after a restart of the host, and in boxes of its snapshots. A box without keeps the defaults.
func TestAccountOfABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	var made struct{ ID, User, Home string }
	body := map[string]any{"user": "user", "home": "/home/user", "init_command": "pwd >at-start", "keep_alive": true}
	if err := w.Client.Do(t.Context(), "POST", "/v2/box", body, &made); err != nil {
		t.Fatal(err)
	}
	box := made.ID
	t.Cleanup(func() { _ = w.Client.Do(t.Context(), "DELETE", api.BoxPath(box), nil, nil) })
	if made.User != "user" || made.Home != "/home/user" {
		t.Errorf("created as %+v", made)
	}
	call := func(method, path string, body any) (answer string) {
		t.Helper()
		var raw json.RawMessage
		if err := w.Client.Do(t.Context(), method, api.BoxPath(box, path), body, &raw); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(raw)
	}
	whoami := func(what string) {
		t.Helper()
		if out := w.MustSh(box, "whoami; pwd; echo $HOME"); out != "user\n/home/user\n/home/user\n" {
			t.Errorf("%s: %q", what, out)
		}
	}
	whoami("a new box")
	w.Until("the init command has run", func() bool {
		out, _ := w.Sh(box, "cat at-start")
		return out == "/home/user\n"
	})
	if got := call("POST", "files/write", map[string]any{"path": "src/a", "content": "text"}); !strings.Contains(got, `"/home/user/src/a"`) {
		t.Errorf("write: %s", got)
	}
	if got := call("GET", "files/list", nil); !strings.Contains(got, `"/home/user/src"`) {
		t.Errorf("list: %s", got)
	}
	if got := call("GET", "files/read?path="+url.QueryEscape("/workspace/home/src/a"), nil); !strings.Contains(got, `"text"`) {
		t.Errorf("read by the other name of the directory: %s", got)
	}
	for _, user := range []string{"user", "boxuser"} {
		if got := call("POST", "exec", map[string]any{"command": []string{"sh", "-c", "pwd; id -un"}, "folder": "src", "user": user}); !strings.Contains(got, `/home/user/src\nuser\n`) {
			t.Errorf("exec as %s: %s", user, got)
		}
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "exec"), map[string]any{"command": []string{"true"}, "user": "other"}, nil); err == nil || !strings.Contains(err.Error(), "must be user, root") {
		t.Errorf("another name: %v", err)
	}
	if got := call("POST", "code", map[string]any{"code": "import os; print(os.getcwd())", "language": "python", "folder": "src"}); !strings.Contains(got, "/home/user/src") && !strings.Contains(got, "no Python") {
		t.Errorf("code: %s", got)
	}
	if got := call("POST", "schedules", map[string]any{"type": "exec", "cron": "@yearly", "command": []string{"true"}, "folder": "src"}); !strings.Contains(got, `"/home/user/src"`) {
		t.Errorf("schedule: %s", got)
	}
	w.Reboot()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	whoami("after a restart of the host")
	snapshot := takeSnapshot(w, box, "account")
	var restored struct{ ID, User, Home string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot.ID}, &restored); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Client.Do(t.Context(), "DELETE", api.BoxPath(restored.ID), nil, nil) })
	if restored.User != "user" || restored.Home != "/home/user" {
		t.Errorf("restored as %+v", restored)
	}
	if out := w.MustSh(restored.ID, "whoami; pwd; cat src/a"); out != "user\n/home/user\ntext" {
		t.Errorf("restored: %q", out)
	}
}

// TestAccountsThatNoBoxHas: names and directories that could be read in another way are refused, and one of the image's system when the
// box is made, of which nothing is left.
func TestAccountsThatNoBoxHas(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for field, values := range map[string][]string{
		"user": {"root", "A", "1000", "a b", "a:b", "-a"}, "home": {"/", "/root", "/home", "/home/../etc", "/home/a/b", "home/a", "/home/a b", "/etc/x"},
	} {
		for _, value := range values {
			err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{field: value}, nil)
			if err == nil || !strings.Contains(err.Error(), "must be") {
				t.Errorf("%s %q: %v", field, value, err)
			}
		}
	}
	err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{"user": "daemon"}, nil)
	if err == nil || !strings.Contains(err.Error(), "of the system") {
		t.Errorf("a user of the system: %v", err)
	}
}
