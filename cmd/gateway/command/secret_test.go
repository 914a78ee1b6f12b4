package command

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestSecretsAreNeverUnavailableForNoReason: a secret that is being read for the first time is reported as such. One with
// a failed source is reported as unavailable, with the reason and the fix.
func TestSecretsAreNeverUnavailableForNoReason(t *testing.T) {
	t.Parallel()
	awaited := secretAnswer{Name: "gh"}
	failed := secretAnswer{Name: "gh", Error: "file /etc/gh: permission denied"}
	if text := awaited.state(time.Now()); text != "gh is being read for the first time, and requests that need it wait" {
		t.Error(text)
	}
	if text := failed.state(time.Now()); !strings.HasSuffix(text, "are refused: file /etc/gh: permission denied; once that is fixed: gateway secret refresh gh") {
		t.Error(text)
	}
	var out bytes.Buffer
	if err := printSecrets(&out, struct{ Secrets []secretAnswer }{[]secretAnswer{awaited, failed}}); err != nil ||
		!strings.Contains(out.String(), "being read") || strings.Count(out.String(), "unavailable") != 1 {
		t.Errorf("%v\n%s", err, &out)
	}
	for s, want := range map[secretAnswer]string{awaited: "still being read", failed: "permission denied; once that is fixed: gateway secret refresh gh"} {
		if err := printRefreshed(&out, s); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}
