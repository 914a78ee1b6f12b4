package cli

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
)

// TestRecordedRequests: `gateway box har` writes a whole archive when it is interrupted, with the requests of the box and without the
// header that the gateway sets. The audit trail has the call.
func TestRecordedRequests(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.SecretBox()
	path := filepath.Join(t.TempDir(), "box.har")
	cmd := w.Command(t.Context(), "box", "har", box, "--bodies", "64KiB", "--for", "1h", "-o", path)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(said)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "Recording") {
		t.Fatalf("%q, %v", line, err)
	}
	w.MustSh(box, "curl -sS -o /dev/null -H 'Cookie: private=1' 'https://api.example.com/recorded?a=b'")
	w.Until("a second capture is refused", func() bool {
		return strings.Contains(w.Run(1, nil, "", "box", "har", box, "--for", "1s"), "recorded by another call")
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	line, _ := in.ReadString('\n')
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(line, "Recorded 1 request.") {
		t.Errorf("%q, %v", line, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !json.Valid(text) {
		t.Fatalf("%v: %s", err, text)
	}
	harness.Contains(t, string(text), `https://api.example.com/recorded?a=b`, "[set by the gateway]", `"status":200`, `"_boxgate":{"ended":"interrupted"`)
	if strings.Contains(string(text), "private=1") {
		t.Errorf("the box's cookie is shown: %s", text)
	}
	harness.Contains(t, w.Run(0, nil, "", "audit", "--box", box), "/har")
}
