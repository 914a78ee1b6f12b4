package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// Flow is one connection that the kernel forwards for a box, as the box sees it.
type Flow struct {
	Protocol policy.Protocol
	Src, Dst netip.AddrPort // ports are 0 for ICMP
}

// CutFlows ends the connections that the kernel forwards for the box and that keep does not want: their next packet, of
// either side, is judged as new by the policy in force. Connections to the proxy and to DNS are not among them. keep is
// called once per connection.
func (f *Firewall) CutFlows(ctx context.Context, id policy.BoxID, keep func(Flow) bool) error {
	f.mu.Lock()
	b, ok := f.boxes[id]
	f.mu.Unlock()
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	if err := f.cut(b.registration, keep); err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	return ctx.Err()
}

func (f *Firewall) cut(r registration, keep func(Flow) bool) error {
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(f.ns)})
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetReadBuffer(socketBuffer); err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	flows, err := c.DumpFilter(conntrack.NewFilter().Mark(r.mark|flowForwarded), nil)
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	var errs []error
	for _, flow := range flows {
		// Another box may have the same mark.
		seen, ok := flowOf(&flow)
		if !ok || !slices.Contains(r.sources, seen.Src.Addr()) || keep(seen) {
			continue
		}
		if err := c.Delete(flow); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("conntrack: %w", err))
		}
	}
	return errors.Join(errs...)
}

// flowOf translates a connection into what the box sees; false for protocols that boxes do not speak.
func flowOf(c *conntrack.Flow) (Flow, bool) {
	t := c.TupleOrig
	f := Flow{Protocol: protocolOf(t.Proto.Protocol)}
	if f.Protocol == "" {
		return f, false
	}
	f.Src = netip.AddrPortFrom(t.IP.SourceAddress.Unmap(), t.Proto.SourcePort)
	f.Dst = netip.AddrPortFrom(t.IP.DestinationAddress.Unmap(), t.Proto.DestinationPort)
	return f, true
}

// protocolOf names a protocol number; empty for one that boxes do not speak.
func protocolOf(number uint8) policy.Protocol {
	switch number {
	case unix.IPPROTO_TCP:
		return policy.TCP
	case unix.IPPROTO_UDP:
		return policy.UDP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return policy.ICMP
	}
	return ""
}
