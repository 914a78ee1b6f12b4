package attack

import (
	"bufio"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestShutdownIsNoPolicyChange stops the gateway while a tunnel and streams are open, in both families, all under the
// name of an allowed host at a foreign address. Their events give the shutdown as the reason, and the real
// destinations.
func TestShutdownIsNoPolicyChange(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	r := w.Raid(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	open := 0
	for _, evil := range []netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")} {
		for _, host := range []string{"api.example.com", "www.example.com"} {
			c, err := claim(r, netip.AddrPortFrom(evil, 443), host)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			stream(r, c, host, "/sse/tls")
			open++
		}
		c, err := r.Dial("tcp", netip.AddrPortFrom(evil, 80))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		stream(r, c, "www.example.com", "/sse/plain")
		open++
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for line := range strings.Lines(w.LogText()) {
		var e audit.Event
		if json.Unmarshal([]byte(line), &e) != nil || e.Box != policy.BoxID(r.Box) {
			continue
		}
		if e.Reason == name.ReasonPolicyChanged {
			t.Errorf("%s", line)
		}
		if e.Phase != audit.PhaseEnd || e.Action == audit.ActionIntercept && e.Stage == policy.StageConn {
			continue
		}
		ended++
		if e.Error != "the gateway was shut down" || e.Verdict != policy.Allow {
			t.Errorf("%s", line)
		}
		owner := e.Addr == w.V4(e.Name) || e.Addr == w.V6(e.Name)
		if !owner || e.Claimed != w.V4("evil.example.net") && e.Claimed != w.V6("evil.example.net") {
			t.Errorf("%s", line)
		}
	}
	if ended != open {
		t.Errorf("%d events of %d connections", ended, open)
	}
}

// stream sends a request and reads the beginning of an endless response.
func stream(r *harness.Raider, c io.ReadWriter, host, path string) {
	r.T.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		r.T.Fatal(err)
	}
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			r.T.Fatal(err)
		}
		if strings.HasPrefix(line, "data:") {
			return
		}
	}
}
