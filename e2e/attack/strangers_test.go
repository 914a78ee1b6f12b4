package attack

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAttackStrangersFillTheLog: strangers repeatedly connect to the public URLs without completing a handshake: they
// close, or send data other than TLS. The first of each kind is logged, the others are counted, and the log stays
// short.
func TestAttackStrangersFillTheLog(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const each = 500
	began := time.Now()
	for _, at := range []string{"127.0.0.1:443", "[::1]:443"} {
		for i := range 2 * each {
			c, err := w.Net.Gateway().DialContext(t.Context(), "tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				_, _ = io.WriteString(c, "hello, is anybody there?\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			}
			c.Close()
		}
	}
	var lines, count int
	peers := map[netip.Addr]bool{}
	w.Until("every connection is told", func() bool {
		lines, count = 0, 0
		for line := range bytes.Lines([]byte(w.ReadLog())) {
			var e audit.Event
			if json.Unmarshal(line, &e) == nil && e.Stage == policy.StageURL && e.Reason == name.ReasonClientTLS {
				lines, count = lines+1, count+int(max(e.Count, 1))
				peers[e.Peer] = true
			}
		}
		return count >= 4*each
	})
	if count != 4*each || lines > each/5+int(50*time.Since(began).Seconds()) { // events of one interval are merged, for each of two peers
		t.Errorf("%d connections became %d in %d lines", 4*each, count, lines)
	}
	for _, a := range []string{"127.0.0.1", "::1"} {
		if !peers[netip.MustParseAddr(a)] {
			t.Errorf("no line names %s", a)
		}
	}
	if n := strings.Count(w.ReadLog(), "\n"); n > each+int(50*time.Since(began).Seconds()) {
		t.Errorf("the log has %d lines", n)
	}
	if n := strings.Count(w.ReadLog(), "handshake error"); n > 0 {
		t.Errorf("%d lines are net/http's own", n)
	}
}
