package lifecycle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestKeysTrailAndHistoryOutliveTheGateway: a key with a role works on the command line and is in the audit trail.
// After the gateway was killed, the trail is complete and earlier decisions are found. The secret of the box is in none
// of the files.
func TestKeysTrailAndHistoryOutliveTheGateway(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.SecretBox()
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/before; curl -k -sS https://evil.example.net/; true")
	key := strings.TrimSpace(w.Run(0, nil, "", "api-key", "create", "--name", "one", "--role", "one-box", "--box", box))
	lines := strings.Split(key, "\n")
	key = lines[len(lines)-1]
	as := []string{"BOXGATE_API_KEY=" + key}
	w.Run(0, as, "", "box", "get", box)
	w.Run(1, as, "", "api-key", "list")
	w.Run(1, as, "", "box", "create", "--name", "another")
	backup := filepath.Join(t.TempDir(), "backup.db")
	w.Run(0, nil, "", "store", "backup", backup)
	w.Run(0, nil, "", "store", "verify")
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Run(0, as, "", "box", "get", box)
	harness.Contains(t, w.Run(0, nil, "", "audit", "verify"), "entries")
	trail := w.Run(0, nil, "", "audit", "--key", "one")
	harness.Contains(t, trail, "refused")
	past := w.Run(0, nil, "", "log", "--since", "1h", "--box", box, "--host", "*.example.net", "--denied")
	harness.Contains(t, past, "evil.example.net")
	w.Run(0, nil, "", "api-key", "rm", "one")
	w.Run(1, as, "", "box", "get", box)
	for _, dir := range []string{"audit", "history"} {
		files, err := filepath.Glob(filepath.Join(w.Dir, "state", dir, "*.jsonl"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %v %v", dir, files, err)
		}
		for _, f := range append(files, backup) {
			data, err := os.ReadFile(f)
			if err != nil || strings.Contains(string(data), harness.TestSecret) || strings.Contains(string(data), key) {
				t.Errorf("%s has a secret (%v)", f, err)
			}
		}
	}
}
