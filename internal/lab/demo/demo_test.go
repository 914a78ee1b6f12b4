package demo

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDemoFailsWhenAStepDoesNotHappen: an interrupted tour reports it, and still cleans up. It has colours only if they are wanted.
func TestDemoFailsWhenAStepDoesNotHappen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the demo makes network namespaces: run it as root (sudo make test)")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		err := Run(ctx, &out, Options{Gateway: "/bin/true", ImageDir: t.TempDir(), Colour: colour})
		if err == nil {
			t.Fatalf("an interrupted demo claims to be complete:\n%s", out.String())
		}
		if !strings.Contains(out.String(), "FAILED") {
			t.Errorf("it says\n%s", out.String())
		}
		if strings.Contains(out.String(), "\x1b") != colour || strings.Contains(out.String(), "\x1b[31mThis did not happen: ") != colour {
			t.Errorf("colours wanted: %v, got %q", colour, out.String())
		}
	}
}

// TestPulse: it writes at least every five seconds, until it is stopped.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := newPulse(&out)
		time.Sleep(2 * time.Second)
		if _, err := p.Write([]byte("step\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		p.mute()
		time.Sleep(time.Minute)
		p.unmute()
		time.Sleep(5 * time.Second)
		p.stop()
		time.Sleep(time.Minute)
		if want := "step\n   … 5 s\n   … 8 s\n   … 72 s\n"; out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
}
