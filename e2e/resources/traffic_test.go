package resources

import (
	"strconv"
	"strings"
	"testing"

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
