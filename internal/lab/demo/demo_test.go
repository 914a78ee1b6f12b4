package demo

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
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

// TestFleetDemoFailsWhenAStepDoesNotHappen: an interrupted tour of a fleet reports it, and cleans up. Without etcd it says how to get it.
func TestFleetDemoFailsWhenAStepDoesNotHappen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the demo makes network namespaces: run it as root (sudo make test)")
	}
	var out bytes.Buffer
	if err := RunFleet(t.Context(), &out, Options{Gateway: "/bin/true", Etcd: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "make etcd") || out.Len() > 0 {
		t.Errorf("without etcd: %v %s", err, out.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := RunFleet(ctx, &out, Options{Gateway: "/bin/true", ImageDir: t.TempDir(), Etcd: "/bin/false"}); err == nil || !strings.Contains(out.String(), "FAILED") || !strings.Contains(out.String(), "  ok      "+lastStep) {
		t.Errorf("an etcd that does not serve: %v\n%s", err, out.String())
	}
	cancel()
	if err := RunFleet(ctx, &out, Options{Gateway: "/bin/true", ImageDir: t.TempDir(), Etcd: "/bin/true"}); err == nil || strings.Count(out.String(), "  FAILED") != 2 {
		t.Errorf("interrupted: %v\n%s", err, out.String())
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
