package firewall

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// writePlan writes what the version lets the box reach. The zero plan refuses everything but DNS and the sink.
func (t *txn) writePlan(d *draft, stamp string) {
	chain, open := d.chain, d.openChain()
	t.chain(chain)
	t.chain(open)
	t.rule(chain, stamp, counter())
	for _, f := range families {
		t.rule(chain, "", destInSet(f, d.shield.set(f)), refuse(policy.ReasonProtectedRange))
	}
	for _, f := range families {
		if s := d.denied[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), refuse(policy.ReasonDeniedCIDR))
		}
	}
	t.onPorts(chain, "QUIC: names and requests are read from TCP", udp, d.plan.RejectUDP, refuse(policy.ReasonProtocol))
	for _, f := range families {
		if s := d.allowed[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), jumpTo(open))
		}
	}
	t.steer(chain, d.plan.SteerOther)
	if d.plan.DefaultAllow {
		t.rule(chain, "not denied", jumpTo(chainPass))
	} else {
		t.rule(chain, "", refuse(policy.ReasonNotAllowed))
	}
	t.steer(open, d.plan.SteerAllowed)
	t.rule(open, "", jumpTo(chainPass))
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

// registration is what makes the static chains know a box's interface.
type registration struct {
	link    string
	sources []netip.Addr
	mark    uint32
	live    *version // what its element in the map of boxes leads to; nil: it has none
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func sourceKey(link string, a netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(link), a.AsSlice()...)}
}

// register makes the static chains know the interface, but for where its packets go.
func (t *txn) register(r registration) {
	s := newStaticSets()
	for _, a := range r.sources {
		t.addElements(s.sources[familyOf(a)], []nftables.SetElement{sourceKey(r.link, a)})
	}
	t.addElements(s.marks, []nftables.SetElement{{Key: ifname(r.link), Val: native32(r.mark)}})
	t.addElements(s.flows, []nftables.SetElement{{Key: native32(r.mark | flowForwarded)}})
	t.addElements(s.replies, []nftables.SetElement{r.reply()})
}

// leadTo is the element that sends what an interface's box sends to the chain.
func leadTo(link, chain string) nftables.SetElement {
	return nftables.SetElement{Key: ifname(link), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func (r registration) reply() nftables.SetElement {
	return nftables.SetElement{Key: append(ifname(r.link), native32(r.mark|flowForwarded)...)}
}

// newStamp is the comment by which a box's chain says what it enforces.
func newStamp(version uint64) string {
	return fmt.Sprintf("policy version %d, write %s", version, strings.ToLower(rand.Text()[:10]))
}
