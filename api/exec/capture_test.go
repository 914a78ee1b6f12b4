package exec

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
)

// A box prints what takes six times as much in JSON, and many commands do so at once. The answers stay within their limits.
func TestOutputIsCountedAsItIsAnswered(t *testing.T) {
	t.Parallel()
	var held atomic.Int64
	for _, line := range []string{strings.Repeat("\x00", 1000), strings.Repeat("<&>", 333), "plain\n", "\"\\", "caf\u00e9\n"} {
		c := &capture{most: 10_000, held: &held}
		for range 5000 {
			_, _ = c.Write([]byte(line))
		}
		text, err := json.Marshal(c.text())
		if err != nil || len(text) > 10_100 || len(text) < 9_000 || !c.cut {
			t.Errorf("%.10q: %d bytes of JSON, cut %v, %v", line, len(text), c.cut, err)
		}
		c.drop()
	}
	if n := held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	var all []*capture
	for range 20 {
		c := &capture{most: 16 << 20, held: &held}
		all = append(all, c)
		for range 16 {
			_, _ = c.Write(make([]byte, 1<<20))
		}
	}
	sum := 0
	for _, c := range all {
		sum += len(c.buf)
	}
	if sum*len(`\u0000`) > heldMost || sum == 0 {
		t.Errorf("%d bytes are kept", sum)
	}
	for _, c := range all {
		c.drop()
		_, _ = c.Write([]byte("more"))
	}
	if n := held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}
