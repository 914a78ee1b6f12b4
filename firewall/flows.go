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
// called once per connection. Once begun it goes to the end: nil says that all of them are cut.
func (f *Firewall) CutFlows(ctx context.Context, id policy.BoxID, keep func(Flow) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	b, ok := f.boxes[id]
	f.mu.Unlock()
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	if err := f.cut(b.registration, keep); err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	return nil
}

func (f *Firewall) cut(r registration, keep func(Flow) bool) error {
	f.flowsMu.Lock()
	defer f.flowsMu.Unlock()
	c, err := f.dialFlows()
	if err == nil {
		err = cutFlows(c, r, keep)
	}
	if err != nil {
		f.flows = nil
		if c != nil {
			go func() { _ = c.Close() }()
		}
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// dialFlows returns the connection to conntrack, which stays open for the reason given at connection.
func (f *Firewall) dialFlows() (*conntrack.Conn, error) {
	if f.flows != nil {
		return f.flows, nil
	}
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(f.ns)})
	if err != nil {
		return nil, err
	}
	f.flows = c
	return c, c.SetReadBuffer(socketBuffer)
}

func (f *Firewall) closeFlows() error {
	f.flowsMu.Lock()
	defer f.flowsMu.Unlock()
	if f.flows == nil {
		return nil
	}
	c := f.flows
	f.flows = nil
	return c.Close()
}

func cutFlows(c *conntrack.Conn, r registration, keep func(Flow) bool) error {
	flows, err := c.DumpFilter(conntrack.NewFilter().Mark(r.mark|flowForwarded), nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, flow := range flows {
		// Another box may have the same mark.
		seen, ok := flowOf(&flow)
		if !ok || !slices.Contains(r.sources, seen.Src.Addr()) || keep(seen) {
			continue
		}
		if err := c.Delete(flow); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
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
