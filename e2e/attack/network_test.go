package attack

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// onlyPath returns a policy with header rules in one of two forms: a policy that allows only requests for one path, and a rule that
// sends its name along.
func onlyPath(path string) map[string]any {
	return map[string]any{
		"network_policy": map[string]any{
			"mode": "custom", "allowed_domains": []string{"api.example.com"},
			"rules": []any{
				map[string]any{"hosts": []string{"api.example.com"}, "paths": []string{"/" + path + "*"}, "action": "allow"},
				map[string]any{"hosts": []string{"api.example.com"}, "action": "deny"},
			},
		},
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Pair": path}},
	}
}

// TestAttackNeverAMixedPair floods a host, over connections that stay open, while one call after the other replaces the policy and
// the header rule of the box. Each pair allows another path and sends another header: no request arrives with the path of one and
// the header of the other, or without one.
func TestAttackNeverAMixedPair(t *testing.T) {
	t.Parallel()
	for _, way := range everyVersion {
		t.Run(strings.TrimPrefix(way, "--"), func(t *testing.T) {
			t.Parallel()
			w := harness.Shared(t)
			box := w.Create(onlyPath("one"))
			path := api.BoxPath(box, "config/network")
			w.MustSh(box, `i=0; while [ $i -lt 150 ]; do for p in one two; do printf 'url = "https://api.example.com/%s/%s"\noutput = /dev/null\n' $p $i; done; i=$((i+1)); done > /tmp/urls`)
			var flood sync.WaitGroup
			stop := make(chan struct{})
			flood.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						w.Sh(box, "for n in 1 2 3; do curl -k -sS "+way+" --no-progress-meter -K /tmp/urls & done; wait")
					}
				}
			})
			seen := func(p string) []testnet.Received {
				return w.Net.Received("api.example.com", testnet.Of(testnet.Request), func(r testnet.Received) bool { return strings.HasPrefix(r.Target, "/"+p+"/") })
			}
			changes := 0
			for end := time.Now().Add(4 * time.Second); changes < 20 || time.Now().Before(end); changes++ {
				next := []string{"two", "one"}[changes%2]
				if err := w.Client.Do(t.Context(), "PUT", path, onlyPath(next), nil); err != nil {
					t.Fatal(err)
				}
				before := len(seen(next))
				w.Until(fmt.Sprintf("change %d: a request passes", changes), func() bool { return len(seen(next)) > before })
				for _, p := range []string{"one", "two"} {
					for _, r := range seen(p) {
						if got := strings.Join(r.Header.Values("X-Pair"), " "); got != p {
							t.Fatalf("after %d changes %s arrived with X-Pair %q", changes, r.Target, got)
						}
					}
				}
				if changes%10 == 9 {
					w.Net.Forget()
				}
			}
			close(stop)
			flood.Wait()
		})
	}
}

// everyVersion are curl's arguments for the versions of HTTP.
var everyVersion = []string{"--http1.1", "--http2"}
