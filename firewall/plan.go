package firewall

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// boxSets are the address sets of one box.
type boxSets struct{ allowed, denied map[family]*nftables.Set }

func boxChain(id policy.BoxID) string  { return "box_" + string(id) }
func openChain(id policy.BoxID) string { return boxChain(id) + "_allowed" }

func boxOfChain(chain string) (policy.BoxID, bool) {
	id, ok := strings.CutPrefix(chain, "box_")
	return policy.BoxID(id), ok && !strings.HasSuffix(id, "_allowed")
}

func (t *txn) declareBox(id policy.BoxID) boxSets {
	s := boxSets{map[family]*nftables.Set{}, map[family]*nftables.Set{}}
	for _, f := range families {
		s.allowed[f] = t.set(&nftables.Set{Name: boxChain(id) + "_allow" + f.suffix(), Interval: true, KeyType: f.addrType()})
		s.denied[f] = t.set(&nftables.Set{Name: boxChain(id) + "_deny" + f.suffix(), Interval: true, KeyType: f.addrType()})
	}
	t.chain(boxChain(id))
	t.chain(openChain(id))
	return s
}

// writePlan replaces what the box may reach by the plan. The zero plan refuses everything but DNS and the sink.
func (t *txn) writePlan(id policy.BoxID, plan policy.KernelPlan, stamp string) {
	s := t.declareBox(id)
	for _, f := range families {
		t.c.FlushSet(s.allowed[f])
		t.c.FlushSet(s.denied[f])
		t.addElements(s.allowed[f], intervals(spans(f, plan.Allowed)))
		t.addElements(s.denied[f], intervals(spans(f, plan.Denied)))
	}
	chain := boxChain(id)
	t.rule(chain, stamp, counter())
	for _, f := range families {
		t.rule(chain, "", destInSet(f, s.denied[f]), refuse(policy.ReasonDeniedCIDR))
	}
	t.onPorts(chain, "QUIC: names and requests are read from TCP", udp, plan.RejectUDP, refuse(policy.ReasonProtocol))
	for _, f := range families {
		t.rule(chain, "", destInSet(f, s.allowed[f]), jumpTo(openChain(id)))
	}
	t.steer(chain, plan.SteerOther)
	if plan.DefaultAllow {
		t.rule(chain, "not denied", jumpTo(chainPass))
	} else {
		t.rule(chain, "", refuse(policy.ReasonNotAllowed))
	}
	t.steer(openChain(id), plan.SteerAllowed)
	t.rule(openChain(id), "", jumpTo(chainPass))
}

// steer sends TCP to the ports to the proxy.
func (t *txn) steer(chain string, ports policy.PortSet) {
	t.onPorts(chain, "a name or a header rule decides", tcp, ports, jumpTo(chainProxy))
}

// onPorts does what is told with the packets of a transport protocol to the ports.
func (t *txn) onPorts(chain, why string, transport match, ports policy.PortSet, what match) {
	switch {
	case ports.All:
		t.rule(chain, why, transport, what)
	case len(ports.Ports) > 0:
		list := slices.Compact(slices.Sorted(slices.Values(ports.Ports)))
		var elements []nftables.SetElement
		for _, p := range list {
			elements = append(elements, nftables.SetElement{Key: big16(p)})
		}
		s := t.anonymous(nftables.TypeInetService, elements)
		t.rule(chain, why, transport, match{port(), lookup(s)}, what)
	}
}

// writeProtected replaces the protected ranges, which are the same for all boxes. The pools are always among them.
func (t *txn) writeProtected(s *staticSets, c *Config, ranges []netip.Prefix) {
	all := append([]netip.Prefix{c.PoolV4, c.PoolV6}, ranges...)
	for _, f := range families {
		t.c.FlushSet(s.protected[f])
		t.addElements(s.protected[f], intervals(spans(f, all)))
	}
}

// registration is what makes the static chains know a box's interface.
type registration struct {
	link    string
	sources []netip.Addr
	mark    uint32
	chain   string
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func sourceKey(link string, a netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(link), a.AsSlice()...)}
}

func (t *txn) register(s *staticSets, r registration) {
	for _, a := range r.sources {
		t.addElements(s.sources[familyOf(a)], []nftables.SetElement{sourceKey(r.link, a)})
	}
	t.addElements(s.marks, []nftables.SetElement{{Key: ifname(r.link), Val: native32(r.mark)}})
	t.addElements(s.flows, []nftables.SetElement{{Key: native32(r.mark | flowForwarded)}})
	t.addElements(s.replies, []nftables.SetElement{r.reply()})
	t.addElements(s.boxes, []nftables.SetElement{{Key: ifname(r.link), VerdictData: r.verdict()}})
}

func (r registration) reply() nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(r.link), native32(r.mark|flowForwarded)...)}
}

// newStamp is the comment by which a box's chain says what it enforces.
func newStamp(version uint64) string {
	return fmt.Sprintf("policy version %d, write %s", version, strings.ToLower(rand.Text()[:10]))
}
