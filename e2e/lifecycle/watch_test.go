package lifecycle

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// lineBuffer collects the output of a command that runs.
type lineBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lineBuffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.text.String(), text)
}

// TestWatchOfFiles: a watch reports the changes of a box by the API and on the command line, keeps no box awake, survives its pause, and
// ends with a reason when the box or the gateway does.
func TestWatchOfFiles(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Launcher.IdleTimeout = 5 * time.Second })
	box := w.Create(map[string]any{"name": "watched", "network_policy": map[string]any{"mode": "deny-all"}})
	w.MustSh(box, "mkdir src")
	var out, errs lineBuffer
	cmd := w.Command(t.Context(), "box", "watch", "-r", "watched")
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	w.Until("the watch of the command line is in place", func() bool {
		w.MustSh(box, "touch begun")
		return out.has("chmod   begun\n")
	})
	w.Until("a watched box is paused", func() bool { return status(w, box) == "paused" })
	w.MustSh(box, `mkdir src/new; printf x >src/new/f; touch "$(printf 'odd\033[31m\nname')"`)
	w.Until("the changes after the pause are reported", func() bool {
		return out.has("create  src/new\n") && out.has("create  src/new/f\n") && out.has("create  odd")
	})
	if out.has("\x1b") || out.has("\nname") {
		t.Errorf("the box writes to the terminal: %q", &out.text)
	}
	lines := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- w.Client.Lines(t.Context(), api.BoxPath(box, "files", "watch")+"?path=src&entries=true", func(line []byte) error {
			lines <- string(line)
			return nil
		})
	}()
	var event struct {
		Type, Path string
		Entry      struct{ Owner, Permissions string }
		Error      string
	}
	w.Until("the API reports a change", func() bool {
		w.MustSh(box, "rm -f src/api; echo x >src/api")
		for len(lines) > 0 {
			if err := json.Unmarshal([]byte(<-lines), &event); err != nil {
				t.Fatal(err)
			}
			if event.Path == "api" && event.Type == "create" && event.Entry.Owner == "boxuser" && event.Entry.Permissions == "-rw-r--r--" {
				return true
			}
		}
		return false
	})
	w.MustDelete(box)
	select {
	case err := <-exited:
		if err == nil || !errs.has("the watch has ended") {
			t.Errorf("after the box was deleted the command ends with %v: %s", err, &errs.text)
		}
	case <-time.After(time.Minute):
		t.Fatal("the command watches a deleted box")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	other := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	resp, err := w.Client.Stream(t.Context(), "GET", api.BoxPath(other, "files", "watch"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	mustPost(w, other, "pause") // its watch is frozen
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(text), `{"type":"end","error":"the gateway is stopping"}`+"\n") {
		t.Errorf("when the gateway stops: %q, %v", text, err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.MustSh(other, "true")
	w.MustDelete(other)
}
