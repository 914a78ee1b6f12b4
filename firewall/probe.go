package firewall

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netns"

	"boxgate/audit"
	"boxgate/firewall/namespace"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Probe checks whether the kernel supports everything that the firewall needs: it opens one, with a box, in temporary
// network namespaces. The host's own network is not touched.
func Probe(ctx context.Context) error {
	host, err := namespace.New()
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	box, err := namespace.New()
	if err != nil {
		return err
	}
	defer func() { _ = box.Close() }()
	return namespace.Do(host, func() error { return probe(fault.WithoutFaults(ctx), box) })
}

type discard struct{}

func (discard) Record(audit.Event) {}

func probe(ctx context.Context, box netns.NsHandle) error {
	four, six := netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("fd00:198:18::/64")
	a := func(p netip.Prefix, n int) netip.Addr {
		addr := p.Addr()
		for range n {
			addr = addr.Next()
		}
		return addr
	}
	f, err := Open(ctx, Config{PoolV4: four, PoolV6: six, GatewayV4: a(four, 1), GatewayV6: a(six, 1), SinkV4: a(four, 2),
		SinkV6: a(six, 2), DNSPort: 1, ProxyPort: 2, ExplicitPort: 3, Audit: discard{}})
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const id policy.BoxID = "probe"
	if err := f.AddBox(ctx, Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(box)), V4: a(four, 3),
		V6: a(six, 3)}); err != nil {
		return err
	}
	if err := f.Apply(ctx, id, policy.KernelPlan{DefaultAllow: true, Protected: []netip.Prefix{four, six},
		SteerOther: name.PortSet{Ports: []uint16{80, 443}}}); err != nil {
		return err
	}
	return f.CutFlows(ctx, id, func(Flow) bool { return false })
}
