package differential

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// TestSilentAddressGivesWay: a name works if one of its addresses does, even if the first one does not answer at all.
// It is not a row of the table because most clients would wait for minutes without the gateway.
func TestSilentAddressGivesWay(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	const alive = "198.51.100.60"
	rules := "table inet silent { chain input { type filter hook input priority -10; "
	ways := map[string]struct {
		silent string
		ask    string // in the box, with the name for each %[1]s and the silent address for each %[2]s
		action audit.Action
	}{
		"spliced":     {"192.0.2.110", "curl -kfsS -m 300 --resolve %[1]s:443:%[2]s https://%[1]s/", audit.ActionSplice},
		"intercepted": {"192.0.2.111", "curl -kfsS -m 300 --resolve %[1]s:443:%[2]s https://%[1]s/", audit.ActionIntercept},
		"plain":       {"192.0.2.112", "curl -fsS -m 300 --resolve %[1]s:80:%[2]s http://%[1]s/", audit.ActionForward},
		"connect":     {"192.0.2.113", "curl -kfsS -m 300 -x http://10.200.0.1:3128 https://%[1]s/", audit.ActionSplice},
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("*.example.com"), "attach_headers": map[string]any{"intercepted.example.com": map[string]string{"X-Key": harness.Canary}},
	})
	var lines, order []string
	for name, way := range ways {
		host := name + ".example.com"
		if err := w.Net.AddHost(host, way.silent, alive); err != nil {
			t.Fatal(err)
		}
		rules += "ip daddr " + way.silent + " tcp flags syn counter drop; "
		order = append(order, name)
		lines = append(lines, fmt.Sprintf("getent ahostsv4 %[1]s >/dev/null; "+way.ask, host, way.silent))
	}
	if out, err := w.Net.Internet().Run(t.Context(), "nft", rules+"}; }"); err != nil {
		t.Fatal(out, err)
	}
	for i, ran := range w.ShEach(box, lines...) {
		way := ways[order[i]]
		if ran.Code != 0 {
			t.Errorf("%s: %d %s", order[i], ran.Code, ran.Out)
			continue
		}
		e := w.Event(box, func(e audit.Event) bool {
			return e.Name == order[i]+".example.com" && e.Stage != policy.StageDNS && e.Verdict == policy.Allow && e.Action == way.action && e.Phase != audit.PhaseOpen
		})
		if e.Addr != netip.MustParseAddr(alive) {
			t.Errorf("%s: %s", order[i], audit.Line(e))
		}
		counted, err := w.Net.Internet().Run(t.Context(), "nft", "list", "table", "inet", "silent")
		if err != nil {
			t.Fatal(err)
		}
		if tried := regexp.MustCompile(`ip daddr ` + way.silent + ` tcp flags syn counter packets (\d+)`).FindStringSubmatch(counted); tried == nil || tried[1] == "0" {
			t.Errorf("%s: the silent address was not tried: %s", order[i], strings.TrimSpace(counted))
		}
	}
}
