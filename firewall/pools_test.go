package firewall

import (
	"context"
	"net/netip"
	"strings"
	"testing"
)

// A pool that overlaps the host's own network would cut the host off.
func TestPoolsOfTheHostsOwnNetworkAreRefused(t *testing.T) {
	w := newWorld(t)
	w.must(w.fw.Uninstall(t.Context()))
	w.shell(w.gateway, "ip route add 192.168.0.0/16 via 203.0.113.10; ip -6 route add fd99::/32 via 2001:db8:1::10; "+
		"ip route add 10.0.0.0/8 via 203.0.113.10 table 7; ip addr add 172.16.9.1/32 dev lo")
	before := w.snapshot()
	for pool, want := range map[string]string{
		"203.0.113.0/24":   "203.0.113.0/24 on up0",
		"203.0.113.128/25": "203.0.113.0/24 on up0",
		"203.0.0.0/16":     "203.0.113.",
		"192.168.7.0/24":   "192.168.0.0/16 on up0",
		"172.16.0.0/12":    "172.16.9.1/32 on lo",
		"10.77.0.0/16":     "10.0.0.0/8 on up0",
		"127.5.0.0/16":     "127.0.0.0/8 on lo",
		"2001:db8:1::/64":  "2001:db8:1::/64 on up0",
		"fd99:0:5::/64":    "fd99::/32 on up0",
	} {
		cfg := w.cfg
		cfg.PoolV4, cfg.GatewayV4, cfg.SinkV4 = poolOf("100.64.0.0/16")
		p := netip.MustParsePrefix(pool)
		if p.Addr().Is4() {
			cfg.PoolV4, cfg.GatewayV4, cfg.SinkV4 = poolOf(pool)
		} else {
			cfg.PoolV6, cfg.GatewayV6, cfg.SinkV6 = poolOf(pool)
		}
		err := w.in(w.gateway, func() error {
			fw, err := Open(context.Background(), cfg)
			if err == nil {
				_ = fw.Close()
			}
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "overlaps "+want) {
			t.Errorf("pool %s: %v, want overlaps %s", pool, err, want)
		}
		w.must(w.in(w.gateway, func() error {
			found, err := OverlappingPools(p)
			if found[p] == nil {
				t.Errorf("no overlap of %s is found", pool)
			}
			return err
		}))
	}
	if after := w.snapshot(); after != before {
		t.Errorf("something was changed:\n%s\nbefore:\n%s", after, before)
	}
}

// poolOf returns a pool with its gateway and sink.
func poolOf(s string) (netip.Prefix, netip.Addr, netip.Addr) {
	p := netip.MustParsePrefix(s)
	return p, p.Addr().Next(), p.Addr().Next().Next()
}

// A default route does not count, nor do routes of an earlier run, even for a wider pool.
func TestPoolsOfAnEarlierRunAreNoObstacle(t *testing.T) {
	w := newWorld(t)
	w.shell(w.gateway, "ip route add 0.0.0.0/1 via 203.0.113.10; ip route add unreachable 10.0.0.0/8")
	w.addBox("one", 10)
	w.must(w.fw.Close())
	w.open()
	w.must(w.fw.Close())
	w.cfg.PoolV4 = netip.MustParsePrefix("10.64.0.0/10")
	w.open()
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	w.flushWire("one")
}
