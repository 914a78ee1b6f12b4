package nft

import (
	"crypto/rand"
	"slices"
	"strings"

	"github.com/google/nftables"

	"boxgate/firewall/network"
	"boxgate/policy/name"
)

// writePlan writes the chains of a version. The zero plan refuses everything except DNS and the sink.
func (t *txn) writePlan(d *draft, stamp string) {
	chain, open := d.chain, d.openChain()
	t.chain(chain)
	t.chain(open)
	for _, f := range network.Families {
		t.rule(chain, stamp, destInSet(f, d.shield.set(f)), refuse(name.ReasonProtectedRange))
	}
	for _, f := range network.Families {
		if s := d.denied[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), refuse(name.ReasonDeniedCIDR))
		}
	}
	t.onPorts(chain, "QUIC: names and requests are read from TCP", udp, d.plan.RejectUDP, refuse(name.ReasonProtocol))
	through := jumpTo(chainPass)
	if d.sourced {
		t.writeLeave(d)
		through = jumpTo(d.leaveChain())
	}
	pass := jumpTo(open)
	if ports := d.plan.SteerAllowed; !ports.All && len(ports.Ports) == 0 {
		pass = through
	}
	for _, f := range network.Families {
		if s := d.allowed[f]; s != nil {
			t.rule(chain, "", destInSet(f, s.name), pass)
		}
	}
	t.steer(chain, d.plan.SteerOther)
	if d.plan.DefaultAllow {
		t.rule(chain, "not denied", through)
	} else {
		t.rule(chain, "", refuse(name.ReasonNotAllowed))
	}
	t.steer(open, d.plan.SteerAllowed)
	t.rule(open, "", through)
}

// steer sends TCP to the given ports to the proxy.
func (t *txn) steer(chain string, ports name.PortSet) {
	t.onPorts(chain, "a name or a header rule decides", tcp, ports, jumpTo(chainProxy))
}

// fewPorts is how many ports get a rule each. A set for them would cost as much per packet, and to name a new set the
// kernel searches the names of all sets of the table.
const fewPorts = 4

// onPorts applies a verdict to packets of a transport protocol to the ports.
func (t *txn) onPorts(chain, why string, transport match, ports name.PortSet, what match) {
	list := slices.Compact(slices.Sorted(slices.Values(ports.Ports)))
	switch {
	case ports.All:
		t.rule(chain, why, transport, what)
	case len(list) <= fewPorts:
		for _, p := range list {
			t.rule(chain, why, transport, destPort(p), what)
		}
	default:
		var elements []nftables.SetElement
		for _, p := range list {
			elements = append(elements, nftables.SetElement{Key: big16(p)})
		}
		s := t.anonymous(nftables.TypeInetService, elements)
		t.rule(chain, why, transport, match{port(), lookup(s)}, what)
	}
}

// newStamp returns a unique comment that proves that a transaction was committed, see stamped.
func newStamp() string { return "write " + strings.ToLower(rand.Text()[:10]) }
