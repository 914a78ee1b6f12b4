package resources

import (
	"strconv"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// A box sends and receives no faster than limits.send_bytes_per_second and receive_bytes_per_second say, through the proxy too:
// where its TLS is terminated, and where it is passed on.
func TestRatesHoldThroughTheProxy(t *testing.T) {
	t.Parallel()
	const rate = 512 << 10
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.Send, c.Limits.Receive = rate, rate })
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	})
	for _, host := range []string{"api.example.com", "www.example.com"} {
		down := w.MustSh(box, "curl -sS -f -o /dev/null -w '%{time_total}' https://"+host+"/bytes/"+strconv.Itoa(3*rate))
		if seconds := number(t, down); seconds < 2 {
			t.Errorf("%s: 3 seconds' worth were received in %v s", host, seconds)
		}
		up := w.MustSh(box, "head -c "+strconv.Itoa(4*rate)+" /dev/zero | curl -sS -f -o /dev/null -w '%{time_total}' --data-binary @- https://"+host+"/echo")
		if seconds := number(t, up); seconds < 2 { // a second's worth may be sent at once
			t.Errorf("%s: 4 seconds' worth were sent in %v s", host, seconds)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return f
}

// A launched box trusts the roots that proxy.upstream_ca_files adds, where nothing is intercepted, by its bundle; a box from its snapshot has them once.
func TestBoxesTrustAddedRoots(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil) // whose hosts have certificates of such a root
	policy := map[string]any{"network_policy": harness.Custom("www.example.com")}
	box := w.Create(policy)
	const fetch = `curl -sS -f https://www.example.com/echo >/dev/null &&
		python3 -c 'import urllib.request as u; print(u.urlopen("https://www.example.com/echo").status)'`
	harness.Contains(t, w.MustSh(box, fetch), "200")
	const count = "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt"
	before := w.MustSh(box, count)
	taken, code := w.GatewayCommand("box", "snapshot", box)
	if code != cli.ExitOK {
		t.Fatalf("%d: %s", code, taken)
	}
	policy["snapshot_id"] = strings.TrimSpace(taken)
	var copied struct{ ID string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", policy, &copied); err != nil {
		t.Fatal(err)
	}
	again := copied.ID
	harness.Contains(t, w.MustSh(again, fetch), "200")
	if after := w.MustSh(again, count); after != before {
		t.Errorf("the bundle had %s certificates, and has %s in a box from a snapshot", before, after)
	}
}
