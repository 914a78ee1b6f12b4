package flow

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// Flow is one connection that the kernel forwards for a box, as the box sees it.
type Flow struct {
	Protocol policy.Protocol
	Src, Dst netip.AddrPort // ports are 0 for ICMP
	From     netip.Addr     // what its packets leave the host from
}

// Cutter ends connections of boxes in one network namespace. Safe for concurrent use.
type Cutter struct {
	ns netns.NsHandle

	mu     sync.Mutex      // guards the following
	conn   *conntrack.Conn // nil until needed
	closed bool
}

// New returns one for the namespace, which stays the caller's.
func New(ns netns.NsHandle) *Cutter { return &Cutter{ns: ns} }

// Owner is whose connection it is: boxes may share a mark.
type Owner struct {
	Mark uint32     // without network.FlowForwarded
	Addr netip.Addr // its source
}

// Cut ends the connections with the mark that the kernel forwards from one of the sources and that keep does not want. It
// returns how many it kept.
func (k *Cutter) Cut(mark uint32, sources []netip.Addr, keep func(Flow) bool) (kept int, err error) {
	mine := func(o Owner) bool { return slices.Contains(sources, o.Addr) } // another box may have the same mark
	err = k.with(func(c *conntrack.Conn) error {
		kept, err = cutFlows(c, conntrack.NewFilter().Mark(mark|network.FlowForwarded), mine, func(_ Owner, f Flow) bool { return keep(f) })
		return err
	})
	return kept, err
}

// CutAll ends the connections that the kernel forwards for any box and that keep does not want.
func (k *Cutter) CutAll(keep func(Owner, Flow) bool) error {
	return k.with(func(c *conntrack.Conn) error {
		_, err := cutFlows(c, forwarded(), func(Owner) bool { return true }, keep)
		return err
	})
}

// CutLookups ends the lookups of names from the pools that lead to another port of the gateway than this one: the connection table keeps
// for up to minutes where a client's port led to. Other programs mark connections, too: theirs are none of the pools.
func (k *Cutter) CutLookups(pools []netip.Prefix, port uint16) error {
	toGateway := conntrack.NewFilter().Mark(network.MarkedBox).MarkMask(network.MarkedBox | network.FlowForwarded)
	return k.with(func(c *conntrack.Conn) error {
		flows, err := c.DumpFilter(toGateway, nil)
		errs := []error{err}
		for _, flow := range flows {
			from := flow.TupleOrig.IP.SourceAddress.Unmap()
			ofBox := slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(from) })
			if !ofBox || flow.TupleOrig.Proto.DestinationPort != dnsPort || flow.TupleReply.Proto.SourcePort == port {
				continue
			}
			if err := c.Delete(flow); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// forwarded finds the connections that the kernel forwards for boxes.
func forwarded() conntrack.Filter {
	return conntrack.NewFilter().Mark(network.FlowForwarded).MarkMask(network.FlowForwarded)
}

// Owners returns whose connections the kernel forwards at present.
func (k *Cutter) Owners() (map[Owner]bool, error) {
	owners := map[Owner]bool{}
	err := k.with(func(c *conntrack.Conn) error {
		flows, err := c.DumpFilter(forwarded(), nil)
		for _, flow := range flows {
			owners[Owner{flow.Mark &^ network.FlowForwarded, flow.TupleOrig.IP.SourceAddress.Unmap()}] = true
		}
		return err
	})
	return owners, err
}

// with runs what needs the connection to conntrack, and drops that after an error: it may have unread answers.
func (k *Cutter) with(do func(*conntrack.Conn) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.dial()
	if err == nil {
		err = do(c)
	}
	if err != nil {
		k.conn = nil
		if c != nil {
			go func() { _ = c.Close() }()
		}
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// dial returns the connection to conntrack. It stays open: closing a netlink socket makes the kernel wait.
func (k *Cutter) dial() (*conntrack.Conn, error) {
	if k.conn != nil {
		return k.conn, nil
	}
	if k.closed {
		return nil, net.ErrClosed
	}
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(k.ns)})
	if err != nil {
		return nil, err
	}
	k.conn = c
	return c, c.SetReadBuffer(namespace.SocketBuffer)
}

// Close gives the connection to conntrack back.
func (k *Cutter) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.conn == nil {
		return nil
	}
	c := k.conn
	k.conn = nil
	return c.Close()
}

func cutFlows(c *conntrack.Conn, which conntrack.Filter, mine func(Owner) bool, keep func(Owner, Flow) bool) (kept int, err error) {
	flows, err := c.DumpFilter(which, nil)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, flow := range flows {
		seen, ok := Of(&flow)
		owner := Owner{flow.Mark &^ network.FlowForwarded, seen.Src.Addr()}
		if !mine(owner) {
			continue
		}
		if !ok || keep(owner, seen) {
			kept++
			continue
		}
		if err := c.Delete(flow); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return kept, errors.Join(errs...)
}

// Of translates a connection into what the box sees; false for protocols that boxes may not use.
func Of(c *conntrack.Flow) (Flow, bool) {
	t := c.TupleOrig
	f := Flow{Protocol: ProtocolOf(t.Proto.Protocol)}
	f.Src = netip.AddrPortFrom(t.IP.SourceAddress.Unmap(), t.Proto.SourcePort)
	f.Dst = netip.AddrPortFrom(t.IP.DestinationAddress.Unmap(), t.Proto.DestinationPort)
	f.From = c.TupleReply.IP.DestinationAddress.Unmap()
	return f, f.Protocol != ""
}

// ProtocolOf names a protocol number; empty for one that boxes may not use.
func ProtocolOf(number uint8) policy.Protocol {
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
