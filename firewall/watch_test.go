package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/firewall/network"
	"boxgate/policy"
)

// watch runs Watch for the rest of the test.
func (w *world) watch() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.fw.Watch(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// shell runs a command in a namespace.
func (w *world) shell(ns netns.NsHandle, command string) {
	w.t.Helper()
	w.must(w.in(ns, func() error {
		out, err := exec.Command("sh", "-ec", command).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	}))
}

// reaches makes one short attempt: a packet lost by a repair would only be sent again after a second.
func (w *world) reaches(id policy.BoxID, to netip.AddrPort) bool {
	w.t.Helper()
	err := w.in(w.boxNS[id], func() error {
		c, err := (&net.Dialer{Timeout: 50 * time.Millisecond}).Dial("tcp", to.String())
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	return err == nil
}

// Changes by other programs are reverted automatically.
func TestWatchPutsBackWhatSomebodyChanged(t *testing.T) {
	w := newWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	w.watch()
	names := strings.NewReplacer("LINK", network.LinkName("one"))
	before := w.state(names)
	for _, damage := range []string{
		"nft flush ruleset", "nft delete table inet boxgate",
		"nft flush set inet boxgate $(nft list sets inet | grep -o 'protected_[0-9]*_v4')",
		"nft insert rule inet boxgate $(nft list chains inet | grep -o 'plan_[0-9]*_[0-9]*\\b') accept",
		"ip rule flush; ip rule add pref 32766 table main", "ip -6 rule flush", "ip route flush table 45253",
		"ip link set dev LINK group 0", "ip link set dev LINK down", "ip link del LINK",
		"ip link set dev LINK name other0 || { ip link set dev LINK down; ip link set dev LINK name other0; } || true",
		"ip addr del 10.77.0.1/32 dev lo", "ip addr del fd77::1/128 dev lo",
		"tc filter del dev LINK ingress", "tc qdisc del dev LINK clsact",
		"ip route del 10.77.0.10/32", "ip -6 route del fd77::a/128", "ip route replace 10.77.0.10/32 dev up0",
		"ip route del unreachable 10.77.0.0/16", "ip -6 route del unreachable fd77::/64",
		"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv6.conf.all.forwarding=0",
		"sysctl -qw net.ipv4.conf.LINK.forwarding=0", "sysctl -qw net.ipv4.conf.LINK.rp_filter=0",
	} {
		damage = names.Replace(damage)
		w.shell(w.gateway, damage)
		var now string
		t.Cleanup(func() {
			if t.Failed() && now != before {
				t.Logf("after %q:\n%s\nbefore:\n%s", damage, now, before)
			}
		})
		w.wait("repair of "+damage, func() bool {
			now = w.state(names)
			return now == before && w.reaches("one", netip.AddrPortFrom(outside4, server.Port()))
		})
		if w.reaches("one", netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), server.Port())) {
			t.Errorf("after %q a forbidden address is reached", damage)
		}
	}
}

// state returns the state that Watch guards, without parts that change without other programs: counters, handles, and
// elements that packets add to sets.
func (w *world) state(names *strings.Replacer) string {
	w.t.Helper()
	var out []byte
	w.must(w.in(w.gateway, func() (err error) {
		out, err = exec.Command("sh", "-c", names.Replace(`
			nft -s list chains inet boxgate | sed -E 's/(plan)_[0-9]+_[0-9]+/\1/'
			nft -s list table inet boxgate | grep -A4 'set protected_' | sed -E 's/_[0-9]+_v/_v/'
			(ip rule; ip -6 rule) | grep '^[1-9]:'; ip -br addr show lo
			tc filter show dev LINK ingress; (ip route; ip -6 route) | grep -E '10.77|fd77' | sort
			sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.LINK.forwarding net.ipv4.conf.LINK.rp_filter
			true`)).Output()
		return err
	}))
	return string(out)
}

// The repair of a box that fails is retried, and does not affect other boxes.
func TestWatchTriesAgain(t *testing.T) {
	w, logs := newLoggedWorld(t)
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/28"))
	w.apply("two", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	to := netip.AddrPortFrom(outside4, server.Port())
	open, err := w.dial(w.boxNS["two"], "tcp", to)
	w.must(err)
	w.watch()
	w.shell(w.boxNS["one"], "ip link set dev eth0 down; ip link set dev eth0 name old0; ip link add eth0 type veth peer name in-the-way")
	w.shell(w.gateway, "ip link del "+network.LinkName("one"))
	w.wait("the failure is logged", func() bool { return logs.FilterMessageSnippet("cannot be put back yet").Len() > 1 })
	if _, err := ask(open, "x"); err != nil {
		t.Errorf("another box: %v", err)
	}
	w.shell(w.boxNS["one"], "ip link del eth0")
	w.wait("the box has its network again", func() bool { return w.reaches("one", to) })
}

// While another program owns a table of our name, boxes are closed; when it exits, the table is ours again.
func TestWatchTriesAgainForAll(t *testing.T) {
	w, logs := newLoggedWorld(t)
	w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	to := netip.AddrPortFrom(outside4, server.Port())
	w.watch()
	owner := exec.Command("nft", "-i")
	in, err := owner.StdinPipe()
	w.must(err)
	w.must(w.in(w.gateway, owner.Start))
	_, err = fmt.Fprintln(in, "delete table inet boxgate; add table inet boxgate { flags owner; }")
	w.must(err)
	w.wait("the failure is logged", func() bool { return logs.FilterMessageSnippet("cannot be restored yet").Len() > 1 })
	if w.reaches("one", to) {
		t.Error("the box is open without rules")
	}
	w.must(in.Close()) // its table ends with it
	w.must(owner.Wait())
	w.wait("the box has its network again", func() bool { return w.reaches("one", to) })
}

func newLoggedWorld(t *testing.T) (*world, *observer.ObservedLogs) {
	t.Helper()
	w := newWorld(t)
	core, logs := observer.New(zap.WarnLevel)
	w.must(w.fw.Close())
	w.cfg.Log = zap.New(core)
	w.open()
	return w, logs
}

// The link of a box whose namespace is gone cannot be repaired: that is logged once, and other boxes are not affected.
func TestWatchLetsGoOfABoxThatIsGone(t *testing.T) {
	w, logs := newLoggedWorld(t)
	w.boxNS["one"] = newNamespace(t)
	path := filepath.Join(t.TempDir(), "ns")
	w.must(os.Symlink(fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS["one"])), path))
	w.must(w.fw.AddBox(t.Context(), Attachment{Box: "one", NetNS: path, V4: netip.MustParseAddr("10.77.0.10"),
		V6: netip.MustParseAddr("fd77::a")}))
	w.addBox("two", 11)
	w.apply("two", allow("198.51.100.0/28"))
	server := w.serveTCP(w.outside, ":0", nil)
	w.watch()
	w.must(os.Remove(path))
	w.shell(w.gateway, "ip link del "+network.LinkName("one"))
	gone := func() int { return logs.FilterMessageSnippet("is gone").Len() }
	w.wait("it is said", func() bool { return gone() > 0 })
	for range 3 {
		w.shell(w.gateway, "nft delete table inet boxgate")
		w.wait("repair", func() bool { return w.reaches("two", netip.AddrPortFrom(outside4, server.Port())) })
	}
	if n := gone(); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	if n := logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 0 {
		t.Errorf("errors: %v", logs.All())
	}
	w.must(w.fw.RemoveBox(t.Context(), "one"))
}

// A box whose removal failed half-way does not get its plan back by a repair.
func TestABoxThatCouldNotBeRemovedStaysClosed(t *testing.T) {
	w := newWorld(t)
	w.fw.retry.first = time.Hour
	w.addBox("one", 10)
	w.addBox("two", 11)
	w.apply("one", allow("198.51.100.0/28"))
	w.apply("two", allow("198.51.100.0/28"))
	server := netip.AddrPortFrom(outside4, w.serveTCP(w.outside, ":0", nil).Port())
	w.dieAt("remove: link deleted", func(ctx context.Context) { _ = w.fw.RemoveBox(ctx, "one") })
	w.must(w.fw.Restore(t.Context()))
	w.wait("the other box is open", func() bool { return w.reaches("two", server) })
	w.must(w.fw.AwaitBox(t.Context(), "one"))
	if w.reaches("one", server) {
		t.Error("the box has its network again")
	}
	w.must(w.fw.RemoveBox(t.Context(), "one"))
	if w.reaches("one", server) {
		t.Error("the box has a network after its removal")
	}
}

// A box can be removed while its table is deleted by another program, and a restore does not bring it back.
func TestABoxIsRemovedWhileTheTableIsGone(t *testing.T) {
	w := newWorld(t)
	server := w.serveTCP(w.outside, ":0", nil)
	for i, id := range []policy.BoxID{"one", "two"} {
		w.addBox(id, byte(10+i))
		w.apply(id, allow("198.51.100.0/28"))
	}
	w.flushRuleset()
	w.must(w.fw.RemoveBox(t.Context(), "one"))
	w.must(w.fw.Restore(t.Context()))
	w.wait("the way of two", func() bool { return w.reaches("two", netip.AddrPortFrom(outside4, server.Port())) })
	w.addBox("one", 10)
	if w.reaches("one", netip.AddrPortFrom(outside4, server.Port())) {
		t.Error("a box that was removed has its plan again")
	}
}

// A box that was removed after its link was found damaged is not restored, nor reported as restored.
func TestARemovedBoxIsNotRestored(t *testing.T) {
	w := newWorld(t)
	w.addBox("stays", 10)
	w.addBox("goes", 11)
	w.must(w.fw.RemoveBox(t.Context(), "goes"))
	restored, problems := repairer{w.fw}.RestoreBoxes(t.Context(), map[policy.BoxID]bool{"stays": true, "goes": true})
	if !slices.Equal(restored, []policy.BoxID{"stays"}) || len(problems) > 0 {
		t.Errorf("restored %v, %v", restored, problems)
	}
}

// isUp reports whether the host side of a box's link is up.
func (w *world) isUp(id policy.BoxID) (up bool) {
	w.t.Helper()
	w.must(w.in(w.gateway, func() error {
		l, err := netlink.LinkByName(network.LinkName(id))
		up = err == nil && l.Attrs().Flags&net.FlagUp != 0
		return err
	}))
	return up
}

// TestASuspendedBoxHasNoNetwork: no repair raises its interface, neither one of the box nor one of everything, and adding the box
// again does not either. Afterwards it has the network that its last plan allows.
func TestASuspendedBoxHasNoNetwork(t *testing.T) {
	w := newWorld(t)
	a := w.addBox("one", 10)
	w.apply("one", allow("198.51.100.0/28"))
	server := netip.AddrPortFrom(outside4, w.serveTCP(w.outside, ":0", nil).Port())
	w.wait("the way of the box", func() bool { return w.reaches("one", server) })
	w.must(w.fw.Suspend(t.Context(), "one"))
	for what, repair := range map[string]func() error{
		"nothing":       func() error { return nil },
		"a new plan":    func() error { return w.fw.Apply(t.Context(), "one", allow("198.51.100.0/27")) },
		"adding it":     func() error { return w.fw.AddBox(t.Context(), a) },
		"a full repair": func() error { return w.fw.Restore(t.Context()) },
		"its repair": func() error {
			_, problems := repairer{w.fw}.RestoreBoxes(t.Context(), map[policy.BoxID]bool{"one": true})
			return problems["one"]
		},
	} {
		w.must(repair())
		if w.isUp("one") || w.reaches("one", server) {
			t.Errorf("after %s, a suspended box has a network", what)
		}
	}
	w.must(w.fw.Resume(t.Context(), "one"))
	w.wait("the way of the box that was resumed", func() bool { return w.reaches("one", server) })
	w.must(w.fw.Suspend(t.Context(), "one"))
	w.must(w.fw.RemoveBox(t.Context(), "one"))
	w.must(w.fw.AddBox(t.Context(), a))
	w.apply("one", allow("198.51.100.0/28"))
	if w.isUp("one") || w.reaches("one", server) {
		t.Error("a suspended box that was removed and added anew has a network")
	}
	w.must(errors.Join(w.fw.Resume(t.Context(), "one"), w.fw.Suspend(t.Context(), "unknown"), w.fw.Resume(t.Context(), "unknown")))
	w.wait("the way of the box that was added anew", func() bool { return w.reaches("one", server) })
}

// pairs returns the addresses, routes, neighbours and queues of the links of boxes, on both ends.
func (w *world) pairs(ids ...policy.BoxID) (all string) {
	w.t.Helper()
	for _, id := range ids {
		for name, ns := range map[string]netns.NsHandle{network.LinkName(id): w.gateway, "eth0": w.boxNS[id]} {
			w.must(w.in(ns, func() error {
				out, err := exec.Command("sh", "-ec", strings.ReplaceAll("(ip -o -br addr show dev LINK; ip -d route show table all dev LINK; ip -6 -d route show table all dev LINK; "+
					"ip neigh show dev LINK; ip -6 neigh show dev LINK; tc qdisc show dev LINK; tc filter show dev LINK ingress) | sed -E 's/ (id|refcnt) [0-9]+//'", "LINK", name)).CombinedOutput()
				all += string(id) + " " + name + "\n" + string(out)
				return err
			}))
		}
	}
	lines := strings.Split(all, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestNetworkAfterASuspension: the link of a box is as before, which the kernel strips of its routes and neighbours when it goes down,
// after Resume and also if the gateway ends while the box is suspended.
func TestNetworkAfterASuspension(t *testing.T) {
	w := newWorld(t)
	one, two := w.addBox("one", 10), w.addBox("two", 11)
	plan := allow("198.51.100.0/28", "2001:db8:2::/64")
	w.apply("one", plan)
	w.apply("two", plan)
	w.must(w.fw.SetRates(t.Context(), "one", Rates{Send: 1 << 20, Receive: 1 << 20}))
	one.Rates = Rates{Send: 1 << 20, Receive: 1 << 20}
	port := w.serveTCP(w.outside, ":0", nil).Port()
	reached := func(when string) {
		t.Helper()
		for _, a := range []netip.Addr{outside4, outside6} {
			w.wait("the way of the box to "+a.String()+" "+when, func() bool { return w.reaches("one", netip.AddrPortFrom(a, port)) })
		}
	}
	reached("at first")
	before := w.pairs("one", "two")
	w.must(w.fw.Suspend(t.Context(), "one"))
	w.must(w.fw.Resume(t.Context(), "one"))
	reached("after the suspension")
	if after := w.pairs("one", "two"); after != before {
		t.Errorf("before a suspension:\n%s\nafter it:\n%s", before, after)
	}
	w.must(w.fw.Suspend(t.Context(), "one"))
	w.must(w.fw.Close())
	w.open()
	w.must(errors.Join(w.fw.AddBoxes(t.Context(), []Attachment{one, two})...))
	w.must(errors.Join(w.fw.ApplyAll(t.Context(), []Plan{{"one", plan}, {"two", plan}})...))
	reached("after a restart")
	if after := w.pairs("one", "two"); after != before {
		t.Errorf("before a restart:\n%s\nafter it:\n%s", before, after)
	}
}
