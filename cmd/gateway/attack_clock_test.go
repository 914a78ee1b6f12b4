package main

import (
	"net/netip"
	"testing"
	"time"

	"boxgate/internal/testnet"
)

const years = 10 * 365 * 24 * time.Hour

// The wall clock jumps forward and back by years. Certificates of servers are outside of their time then, so nothing
// with a secret is sent; leaves are outside of the box's time. Names, addresses, grants, limits and deadlines do not care,
// and when the clock is right again all is as before.
func TestAttackClockJumps(t *testing.T) {
	t.Parallel()
	w := capturedStopped(t, nil)
	w.Env = []string{faultsFile + "=" + w.faultsPath()}
	w.up()
	key := map[string]string{"Authorization": "Bearer " + testSecret}
	in := w.intrude(w.create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com", "cdn.example.org"},
			"allowed_cidrs": []string{extra[0].String() + "/32"}},
		"attach_headers": map[string]any{"api.example.com": key, "v4only.example.com": key, "multi.example.com": key},
	}))
	s := w.besiege(attackerAt(101))
	r := w.raid(in.box)
	w.mustSh(in.box, "curl -sS -o /dev/null https://api.example.com/before")
	tunnel := asker(tlsUnchecked(in.dialHost("cdn.example.org", 443), "cdn.example.org"), "cdn.example.org")
	flow := r.chat("udp", netip.AddrPortFrom(extra[0], 4444))
	for host, jump := range map[string]time.Duration{"v4only.example.com": years, "multi.example.com": -years} {
		w.jump(jump)
		if out, code := w.sh(in.box, "curl -sS https://"+host+"/wrong"); code != 60 {
			t.Errorf("%v: a box that checks leaves: %d %s", jump, code, out)
		}
		if out, _ := w.sh(in.box, "curl -sS -k -o /dev/null -w '%{http_code}' https://"+host+"/wrong"); out != "502" {
			t.Errorf("%v: a box that checks nothing: %s", jump, out)
		}
		if seen := w.Net.Received(host, testnet.Of(testnet.Request)); len(seen) != 0 {
			t.Errorf("%v: %s received %+v", jump, host, seen)
		}
		w.mustSh(in.box, "curl -sS -k -o /dev/null https://cdn.example.org/spliced")
		if err := tunnel(); err != nil {
			t.Errorf("%v: a tunnel from before: %v", jump, err)
		}
		before := flow.count.Load()
		w.until("the flow goes on", func() bool { return flow.count.Load() > before })
		w.setPolicy(in.box, map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com", "cdn.example.org"},
			"allowed_cidrs": []string{extra[0].String() + "/32"}})
	}
	w.jump(0)
	for _, host := range []string{"api.example.com", "v4only.example.com", "multi.example.com"} {
		w.mustSh(in.box, "curl -sS -o /dev/null https://"+host+"/right")
	}
	s.holds()
}
