package attack

import (
	"net/netip"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// A box has an exchange of every kind open with hosts that it may reach for a limited time, and connections that the
// kernel forwards. All are cut when the time is over, without any request. Connections that the policy itself allows
// lose no byte. A shorter lease replaces a longer one without cutting any connection.
func TestAttackOutlivesALease(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	key := map[string]string{"X-Key": harness.Canary}
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": key, "cdn.example.org": key},
	}))
	flows := harness.AttackerAt(72)
	leased := []string{"cdn.example.org", "evil.example.net", flows[0].String() + "/32", flows[1].String() + "/128"}
	w.Lease(in.Box, "allow", time.Hour, leased...)
	closed, kept := openAll(in, "cdn.example.org", "evil.example.net"), openAll(in, "api.example.com", "www.example.com")
	r := w.Raid(in.Box)
	var tcp []*harness.Chatter
	var udp []*harness.Chatter
	for _, a := range flows {
		tcp = append(tcp, r.Chat("tcp", echo(w, netip.AddrPortFrom(a, 7777)).at))
		push(w, netip.AddrPortFrom(a, 7778))
		udp = append(udp, listenTo(r, netip.AddrPortFrom(a, 7778)))
	}
	const lasts = 3 * time.Second
	w.Lease(in.Box, "allow", lasts, leased...)
	ends := time.Now().Add(lasts)
	for name, u := range closed {
		if isCut(t, u.Conn) && time.Now().Before(ends.Add(-time.Second)) {
			t.Errorf("%s: cut by the shorter lease, before its end", name)
		}
	}
	grace := graceOf(t)
	w.Until("the lease ends", func() bool { return time.Now().After(ends) })
	isClosed := cutInTime(in)
	for name, u := range closed {
		isClosed(name, u.Conn)
	}
	for _, c := range tcp {
		select {
		case <-c.Ended:
		case <-time.After(harness.Patience):
			t.Errorf("a flow to %v is still open", c.Conn.RemoteAddr())
		}
	}
	w.Until("time has passed", func() bool { return time.Since(ends) > grace()+more })
	for _, c := range append(tcp, udp...) {
		if last := time.Unix(0, c.Heard.Load()); last.After(ends.Add(grace())) && !harness.RaceDetector() {
			t.Errorf("a flow to %v was heard %v after the lease's end", c.Conn.RemoteAddr(), last.Sub(ends))
		}
	}
	for name, u := range kept {
		if isCut(t, u.Conn) {
			t.Errorf("%s: cut although it is still allowed", name)
		}
	}
	if out, code := w.Sh(in.Box, "curl -k -sS -m 30 https://evil.example.net/after"); code != 35 {
		t.Errorf("after its end: %d %s", code, out)
	}
	w.Event(in.Box, func(e audit.Event) bool {
		return e.Name == "evil.example.net" && e.Stage == policy.StageDNS && e.Reason == name.ReasonNotAllowed
	})
	w.Event(in.Box, func(e audit.Event) bool {
		return e.Reason == name.ReasonPolicyChanged && e.Name == "evil.example.net"
	})
	harness.Contains(t, w.ReadLog(), "a temporary entry of a policy has begun", "a temporary entry of a policy has ended")
	finishAll(t, kept, "api.example.com", "www.example.com")
	w.NoInternalErrors()
}
