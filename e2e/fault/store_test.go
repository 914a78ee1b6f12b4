package fault

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// The store is missing or damaged while a box runs. The gateway refuses to start and explains the fix. The box, its
// rules and the API key do not change, and with the store restored everything works again.
func TestAttackStoreThatIsGoneOrDamaged(t *testing.T) {
	t.Parallel()
	w := harness.NewCapturedStopped(t, nil)
	w.StartIfStopped()
	denied := harness.AttackerAt(110)
	box := w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "denied_domains": []string{"evil.example.net"}, "denied_cidrs": []string{denied[0].String() + "/32", denied[1].String() + "/128"},
	}})
	w.Kill()
	file, keyFile := filepath.Join(w.Dir, "state", "boxgate.db"), filepath.Join(w.Dir, "state", "api-key")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	apiKey, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(old, next string) []byte { return bytes.ReplaceAll(bytes.Clone(whole), []byte(old), []byte(next)) }
	for _, c := range []struct {
		name  string
		data  []byte // nil: no file
		wants string
	}{
		{"missing", nil, "says that a gateway ran here"},
		{"empty", []byte{}, "is empty"},
		{"cut short", whole[:10000], "damaged"},
		{"flipped bits in the names of members", edited(`"denied_`, `"dgnied_`), "was changed"},
		{"another mode", edited(`"mode":"custom"`, `"mode":"cusuom"`), "was changed"},
		{"another address", edited(denied[0].String(), "203.0.113.111"), "was changed"},
	} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if c.data != nil && os.WriteFile(file, c.data, 0o600) != nil {
			t.Fatal("the file cannot be written")
		}
		err := w.Start(t.Context())
		w.Kill()
		if err == nil || !strings.Contains(err.Error(), c.wants) || !strings.Contains(err.Error(), "backup") {
			t.Errorf("%s: the start says: %v", c.name, err)
		}
		if now, err := os.ReadFile(keyFile); err != nil || !bytes.Equal(now, apiKey) {
			t.Errorf("%s: another API key was written (%v)", c.name, err)
		}
		if pins, _ := filepath.Glob(filepath.Join(lab.RunDir(w.Dir), "netns", box)); len(pins) != 1 {
			t.Errorf("%s: the box is gone", c.name)
		}
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.StartIfStopped()
	r := w.Raid(box)
	for _, a := range denied {
		if got := r.Try("udp", netip.AddrPortFrom(a, 4444)); got == harness.Saw(nil) {
			t.Errorf("%v is open", a)
		}
	}
	w.Untouched(denied[0], denied[1])
}
