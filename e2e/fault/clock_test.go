package fault

import (
	"net/netip"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

const years = 10 * 365 * 24 * time.Hour

// The wall clock jumps forward and back by years. Then the certificates of servers are expired or not yet valid, so no
// request with a secret is sent, and the gateway's leaves are invalid for the box. Names, addresses, grants, limits and
// deadlines are not affected. With the correct clock everything works again.
func TestAttackClockJumps(t *testing.T) {
	t.Parallel()
	w := harness.NewCapturedStopped(t, nil)
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	key := map[string]string{"Authorization": "Bearer " + harness.TestSecret}
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com", "cdn.example.org"},
			"allowed_cidrs": []string{extra[0].String() + "/32"}},
		"attach_headers": map[string]any{"api.example.com": key, "v4only.example.com": key, "multi.example.com": key},
	}))
	s := besiege(w, harness.AttackerAt(101))
	r := w.Raid(in.Box)
	w.MustSh(in.Box, "curl -sS -o /dev/null https://api.example.com/before")
	tunnel := asker(harness.TLSUnchecked(in.DialHost("cdn.example.org", 443), "cdn.example.org"), "cdn.example.org")
	flow := r.Chat("udp", netip.AddrPortFrom(extra[0], 4444))
	for host, jump := range map[string]time.Duration{"v4only.example.com": years, "multi.example.com": -years} {
		w.ShiftClock(jump)
		if out, code := w.Sh(in.Box, "curl -sS https://"+host+"/wrong"); code != 60 {
			t.Errorf("%v: a box that checks leaves: %d %s", jump, code, out)
		}
		if out, _ := w.Sh(in.Box, "curl -sS -k -o /dev/null -w '%{http_code}' https://"+host+"/wrong"); out != "502" {
			t.Errorf("%v: a box that checks nothing: %s", jump, out)
		}
		if seen := w.Net.Received(host, testnet.Of(testnet.Request)); len(seen) != 0 {
			t.Errorf("%v: %s received %+v", jump, host, seen)
		}
		w.MustSh(in.Box, "curl -sS -k -o /dev/null https://cdn.example.org/spliced")
		if err := tunnel(); err != nil {
			t.Errorf("%v: a tunnel from before: %v", jump, err)
		}
		before := flow.Count.Load()
		w.Until("the flow goes on", func() bool { return flow.Count.Load() > before })
		w.SetPolicy(in.Box, map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com", "cdn.example.org"},
			"allowed_cidrs": []string{extra[0].String() + "/32"}})
	}
	w.ShiftClock(0)
	for _, host := range []string{"api.example.com", "v4only.example.com", "multi.example.com"} {
		w.MustSh(in.Box, "curl -sS -o /dev/null https://"+host+"/right")
	}
	s.assertHolds()
}

// TestTheEndOfABoxByAClockThatIsSet: a box keeps its time when the clock of the host is set, also if the gateway restarts by the new clock, and
// its end is shown by that clock.
func TestTheEndOfABoxByAClockThatIsSet(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	box := w.Create(map[string]any{"ephemeral": true, "ttl": 1800})
	end := func() time.Time {
		t.Helper()
		var is struct {
			ExpiresAt int64 `json:"expires_at"`
		}
		if err := w.Client.Get(t.Context(), api.BoxPath(box), &is); err != nil {
			t.Fatal(err)
		}
		return time.Unix(is.ExpiresAt, 0)
	}
	first := end()
	for _, jump := range []time.Duration{years, -years, 0} {
		w.ShiftClock(jump)
		w.Kill()
		w.StartIfStopped()
		w.MustSh(box, "true")
		if moved := end().Sub(first.Add(jump)); moved.Abs() > time.Minute {
			t.Errorf("with a clock set by %v, the end is shown %v off", jump, moved)
		}
	}
	w.ShiftClock(years)
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ttl"), map[string]any{"extend": 60}, nil); err != nil {
		t.Fatal(err)
	}
	if moved := end().Sub(first.Add(years + time.Minute)); moved.Abs() > time.Minute {
		t.Errorf("an end that was put off is shown %v off", moved)
	}
	w.MustSh(box, "true")
}
