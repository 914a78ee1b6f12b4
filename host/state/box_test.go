package state

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/store"
)

// TestNotesOfRuntimes shows the limits of a container of a runtime with a network stack of its own, and none of others.
func TestNotesOfRuntimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, runtime string
		noted         bool
	}{
		{api.AttachOCI, "runsc", true}, {api.AttachOCI, "/usr/local/bin/runsc", true}, {api.AttachOCI, "runc", false},
		{api.AttachOCI, "crun", false}, {api.AttachOCI, "another", false}, {api.AttachOCI, "", false}, {api.AttachNetNS, "runsc", false},
	} {
		b := NewBox(store.Box{ID: "b1", Attached: &store.Attached{Kind: c.kind, Runtime: c.runtime}}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
		b.Lock()
		b.Publish()
		b.Unlock()
		note := b.Shown.Load().Attached.Note
		if (note != "") != c.noted || c.noted && !strings.Contains(note, "gVisor") {
			t.Errorf("%s by %q: %q", c.kind, c.runtime, note)
		}
	}
}
