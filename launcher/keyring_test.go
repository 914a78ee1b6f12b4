package launcher

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy"
)

// keysOf returns how many keys the kernel counts for a box's users.
func keysOf(t *testing.T, l *Launcher, id policy.BoxID) int {
	t.Helper()
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	users, err := os.ReadFile("/proc/key-users")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(users)) {
		var uid, usage, keys, instantiated int
		if _, err := fmt.Sscanf(line, "%d: %d %d/%d", &uid, &usage, &keys, &instantiated); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if first := r.ids().Host(0); uid >= first && uid < first+1<<16 {
			total += keys
		}
	}
	return total
}

// The kernel gives a user 200 keys. A command uses none of them: neither while it runs, nor afterwards.
func TestCommandsTakeNoKeyrings(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	before := keysOf(t, l, id)
	for range nightly.Size(12, 150) {
		want(t, sh(t, l, id, "sleep 1000 >/dev/null 2>&1 & echo started"), "started")
		want(t, rootSh(t, l, id, "sleep 1000 >/dev/null 2>&1 & echo started"), "started")
	}
	if after := keysOf(t, l, id); before > 0 || after > before {
		t.Errorf("%d keys at first, %d with commands", before, after)
	}
}
