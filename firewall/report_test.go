package firewall

import (
	"net/netip"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestSuppressedRefusalsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	c, err := w.dial(w.boxNS["one"], "udp", netip.AddrPortFrom(outside4, 9))
	w.must(err)
	const packets = 500
	for sent := 0; sent < packets; {
		if _, err := c.Write([]byte("x")); err == nil { // an ICMP error shows up as an error of the next write
			sent++
		}
	}
	var total uint64
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("events stand for %d packets, the kernel counts %d", total, w.count("refused_"+string(name.ReasonNotAllowed)))
		}
	})
	w.wait("events stand for all packets", func() bool {
		w.events.mu.Lock()
		defer w.events.mu.Unlock()
		total = 0
		for _, e := range w.events.events {
			if e.Reason == name.ReasonNotAllowed && e.Box == "one" {
				total += max(e.Count, 1)
			}
		}
		return total == packets
	})
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	if n := len(w.events.events); n > 100 {
		t.Errorf("%d events for %d packets", n, packets)
	}
}

func TestEventsCarryThePolicysRule(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	w.cfg.Explain = func(r policy.Request) policy.Decision {
		if r.Box != "one" || r.Stage != policy.StageKernel {
			t.Errorf("asked for %+v", r)
		}
		switch r.Addr {
		case outside4:
			return policy.Decision{Reason: name.ReasonDeniedCIDR, Rule: "198.51.100.0/24", Version: 3}
		case marker4:
			return policy.Decision{Verdict: policy.Allow, Reason: name.ReasonAllowedCIDR, Rule: "198.51.100.250", Version: 3}
		}
		return policy.Decision{Reason: name.ReasonDenyAll, Version: 3}
	}
	w.open()
	w.addBox("one", 10)
	plan := allow()
	plan.Denied = prefixes("198.51.100.0/25")
	w.apply("one", plan)
	_, _ = w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, 80))
	e := w.waitEvent("denied", func(e audit.Event) bool { return e.Addr == outside4 })
	if e.Reason != name.ReasonDeniedCIDR || e.Rule != "198.51.100.0/24" || e.Version != 3 {
		t.Errorf("event %+v", e)
	}
	_, _ = w.dial(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside6, 80))
	e = w.waitEvent("deny-all", func(e audit.Event) bool { return e.Addr == outside6 })
	if e.Reason != name.ReasonDenyAll || e.Rule != "" {
		t.Errorf("event %+v", e)
	}
	w.flushWire("one")
	e = w.waitEvent("allowed", func(e audit.Event) bool { return e.Addr == marker4 })
	if e.Verdict != policy.Allow || e.Action != audit.ActionKernel || e.Rule != "198.51.100.250" || e.Port != 9 {
		t.Errorf("event %+v", e)
	}
}

// TestRefusalsHaveTheNameOfTheAddress: events have the name that DNS resolved to the address for the box, not a name of
// another box.
func TestRefusalsHaveTheNameOfTheAddress(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Close())
	host, err := name.Parse("api.corp.example")
	w.must(err)
	older, err := name.Parse("older.corp.example")
	w.must(err)
	w.cfg.Names = func(box policy.BoxID, a netip.Addr) []name.Name {
		if box == "one" && a == outside4 {
			return []name.Name{host, older}
		}
		return nil
	}
	w.open()
	for i, box := range []policy.BoxID{"one", "two"} {
		w.addBox(box, byte(10+i))
		w.apply(box, allow("198.51.100.250/32"))
		for _, to := range []netip.Addr{outside4, outside6} {
			_, _ = w.dial(w.boxNS[box], "tcp", netip.AddrPortFrom(to, 22))
			e := w.waitEvent("denied", func(e audit.Event) bool { return e.Addr == to && e.Box == box })
			want := ""
			if box == "one" && to == outside4 {
				want = host.String()
			}
			if e.Name != want || e.Port != 22 || e.Verdict != policy.Deny || e.Reason != name.ReasonNotAllowed {
				t.Errorf("event %+v, want the name %q", e, want)
			}
		}
	}
}

func TestForwardedConnectionsAreReported(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28", "2001:db8:2::/64"))
	server := w.serveTCP(w.outside, ":0", nil)
	for _, to := range []netip.Addr{outside4, outside6} {
		_, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(to, server.Port()), "hello")
		w.must(err)
		begun := w.waitEvent("begin", func(e audit.Event) bool { return e.Addr == to && e.BytesOut == 0 })
		if begun.Verdict != policy.Allow || begun.Box != "one" || begun.Protocol != policy.TCP || begun.Port != server.Port() {
			t.Errorf("event %+v", begun)
		}
		w.must(w.fw.CutFlows(t.Context(), "one", func(Flow) bool { return false }))
		ended := w.waitEvent("end", func(e audit.Event) bool { return e.Addr == to && e.BytesOut > 0 })
		if ended.BytesIn < 100 || ended.BytesOut < 100 || ended.Duration <= 0 || ended.Action != audit.ActionKernel {
			t.Errorf("event %+v", ended)
		}
	}
	if e, ok := w.events.find(func(e audit.Event) bool { return e.Verdict == policy.Deny }); ok {
		t.Errorf("a refusal was reported: %+v", e)
	}
}

// A box is removed before the kernel has reported its connections.
func TestConnectionsOfARemovedBoxAreReported(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	_, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "hello")
	w.must(err)
	w.must(w.fw.RemoveBox(t.Context(), "one"))
	w.waitEvent("end", func(e audit.Event) bool { return e.Box == "one" && e.Phase == audit.PhaseEnd && e.BytesOut > 100 })
}

// The kernel drops reports because they come faster than they are read. Their number is logged, and open connections are
// looked up.
func TestConnectionsWhoseReportsWereDroppedAreFound(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	to := w.silentUDP("198.51.100.7:0")
	w.must(w.fw.reports.SetFlowBuffer(1)) // the minimum of the kernel
	server := w.serveTCP(w.outside, ":0", nil)
	w.events.mu.Lock() // the reader blocks
	for range 3 {
		w.openUDP("one", to, 100)
	}
	_, err := w.exchange(w.boxNS["one"], "tcp", netip.AddrPortFrom(outside4, server.Port()), "hello")
	w.events.mu.Unlock()
	w.must(err)
	e := w.waitEvent("how many were dropped", func(e audit.Event) bool { return e.Reason == name.ReasonUnnamed })
	if e.Count < 50 || e.Verdict != policy.Allow || e.Error == "" {
		t.Errorf("event %+v", e)
	}
	w.waitEvent("the connection", func(e audit.Event) bool { return e.Box == "one" && e.Protocol == policy.TCP && e.Port == server.Port() })
	var seen uint64
	w.wait("all that go on", func() bool {
		seen = 0
		w.events.find(func(e audit.Event) bool {
			if e.Phase == audit.PhaseOngoing && e.Protocol == policy.UDP {
				seen++
			}
			return false
		})
		return seen >= 270
	})
}
