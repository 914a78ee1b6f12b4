package runtimes

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/launcher/oci"
)

// Files written by the API appear in the box, and the other way round. With a runtime whose files the host cannot open,
// the API reports an error.
func TestFilesUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, runtime *oci.Runtime) {
		box := w.Create(map[string]any{})
		write := func(text string) error {
			return w.Client.Do(t.Context(), "POST", api.BoxPath(box, "files/write"), map[string]any{"path": "note", "content": text}, nil)
		}
		if err := write("first"); runtime.OwnFiles {
			if err == nil || strings.Contains(err.Error(), "not running") {
				t.Errorf("a file of a kernel of its own: %v", err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if out := w.MustSh(box, "cat note; stat -c %U note; echo second > note2"); out != "firstboxuser\n" {
			t.Errorf("the box reads %q", out)
		}
		if err := write("changed"); err != nil {
			t.Fatal(err)
		}
		if out := w.MustSh(box, "cat note"); out != "changed" {
			t.Errorf("after a change the box reads %q", out)
		}
		var read struct{ Content string }
		if err := w.Client.Get(t.Context(), api.BoxPath(box, "files/read")+"?path=note2", &read); err != nil || read.Content != "second\n" {
			t.Errorf("read back: %+v %v", read, err)
		}
	})
}
