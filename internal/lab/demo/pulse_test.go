package demo

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPulse: it writes at least every five seconds, until it is stopped.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := newPulse(&out)
		time.Sleep(3 * time.Second)
		if _, err := p.Write([]byte("step\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		p.mute()
		time.Sleep(time.Minute)
		p.unmute()
		time.Sleep(5 * time.Second)
		p.stop()
		time.Sleep(time.Minute)
		if want := "step\n   … 7 s\n   … 11 s\n   … 76 s\n"; out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
}
