package demo

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// TestDemoFailsWhenAStepDoesNotHappen: an interrupted tour reports it, and still cleans up.
func TestDemoFailsWhenAStepDoesNotHappen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the demo makes network namespaces: run it as root (sudo make test)")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	err := Run(ctx, &out, Options{Gateway: "/bin/true", ImageDir: t.TempDir()})
	if err == nil {
		t.Fatalf("an interrupted demo claims to be complete:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "FAILED") {
		t.Errorf("it says\n%s", out.String())
	}
}
