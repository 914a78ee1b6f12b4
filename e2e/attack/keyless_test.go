package attack

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
)

// A stranger on the host without a key opens thousands of connections to the admin API, over TCP and its socket, and to
// the metrics, and sends at most half a request on each. They hold few descriptors. A client with the key is served the
// whole time, also on a stream opened before.
func TestAttackStrangersHoldTheAdminListeners(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.Process.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before, most := open(), 0
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	dial := func(network, address string) (net.Conn, error) {
		if network == "unix" { // a file, independent of the network namespace
			return new(net.Dialer).DialContext(t.Context(), network, address)
		}
		return w.Net.Gateway().DialContext(t.Context(), network, address)
	}
	const each = 1000
	for _, at := range [][2]string{{"tcp", "127.0.0.1:8600"}, {"tcp", "127.0.0.1:9600"}, {"unix", w.Socket}} {
		for i := range each {
			c, err := dial(at[0], at[1])
			if err != nil {
				t.Fatalf("connection %d to %s: %v", i, at[1], err)
			}
			conns = append(conns, c)
			if i%2 == 0 {
				_, _ = c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-"))
			}
			if i%250 == 249 {
				most = max(most, open()-before)
				began := time.Now()
				if err := w.Client.Get(t.Context(), api.BoxPath(box), nil); err != nil || time.Since(began) > 20*time.Second {
					t.Errorf("after %d connections to %s, with the key: %v, %v", i+1, at[1], err, time.Since(began))
				}
			}
		}
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box), nil); err != nil { // after all of them in the socket's backlog
		t.Error(err)
	}
	most = max(most, open()-before)
	t.Logf("%d connections hold %d descriptors, and held %d at most", len(conns), open()-before, most)
	if most > 3*256+64 { // for the three listeners, and a few that are being closed
		t.Errorf("strangers held %d descriptors", most)
	}
	w.MustSh(box, "curl -sS -k -o /dev/null https://api.example.com/served")
	w.Event(box, func(e audit.Event) bool { return e.Path == "/served" || strings.Contains(e.Name, "api.example.com") })
}
