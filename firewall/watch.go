package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	vnl "github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// watch holds the sockets that hear of changes. They are opened when the table stands, so that nothing is missed before
// [Firewall.Watch] begins to read.
type watch struct{ nft, route *netlink.Conn }

func (f *Firewall) openWatch() error {
	var err error
	if f.watch.nft, err = f.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return err
	}
	f.watch.route, err = f.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
	return err
}

func (w *watch) close() {
	for _, c := range []*netlink.Conn{w.nft, w.route} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Watch notices what other programs change of the table, the routing rules, the gateway's addresses and the boxes'
// links, and puts it back, until ctx ends. Meanwhile boxes are closed: the routing gate lets through only what the table
// has judged, and the table only what came over a box's own link. It returns an error when it can no longer see changes.
// Call it once.
func (f *Firewall) Watch(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	failed := make(chan error, 2)
	go func() { failed <- follow(f.watch.nft, f.tableChanged, changed) }()
	go func() { failed <- follow(f.watch.route, f.routingChanged, changed) }()
	for {
		select {
		case <-changed:
			f.repair(ctx, changed)
		case <-ctx.Done():
			f.watch.close()
			<-failed
			<-failed
			return nil
		case err := <-failed:
			f.watch.close()
			<-failed
			return err
		}
	}
}

// settle is how long it must be quiet after a change before it is repaired: a flush of the rules is one event after the
// other, and one repair is enough for all.
const settle = 5 * time.Millisecond

// repair restores once the changes have come to an end.
func (f *Firewall) repair(ctx context.Context, changed <-chan struct{}) {
	for quiet := false; !quiet; {
		select {
		case <-changed:
		case <-time.After(settle):
			quiet = true
		}
	}
	if err := f.Restore(ctx); err != nil {
		f.cfg.Log.Error("kernel rules were changed by another program and could not be restored; boxes stay closed", zap.Error(err))
		return
	}
	f.cfg.Log.Warn("kernel rules were changed by another program and have been restored")
}

// follow reports foreign changes, and lost events as changes, until the socket is closed.
func follow(c *netlink.Conn, foreign func([]netlink.Message) bool, changed chan<- struct{}) error {
	for {
		batch, err := c.Receive()
		lost := errors.Is(err, unix.ENOBUFS)
		if err != nil && !lost {
			return fmt.Errorf("firewall: watch: %w", err)
		}
		if lost || foreign(batch) {
			select {
			case changed <- struct{}{}:
			default: // one is waiting already
			}
		}
	}
}

// subscribe opens a netlink socket that hears the groups.
func (f *Firewall) subscribe(family int, groups ...uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(family, &netlink.Config{NetNS: int(f.ns)})
	if err != nil {
		return nil, fmt.Errorf("firewall: watch: %w", err)
	}
	_ = c.SetReadBuffer(socketBuffer) // a larger buffer only makes a loss, and the full restore after it, less likely
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			return nil, errors.Join(fmt.Errorf("firewall: watch: %w", err), c.Close())
		}
	}
	return c, nil
}

// nfgenmsg (linux/netfilter/nfnetlink.h) stands before the attributes of an nftables event: family, version, resource.
const nfgenmsgLen = 4

// attrTable is the attribute that names the table in events about tables, chains, rules, sets, elements and objects
// alike (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …).
const attrTable = 1

// tableChanged reports whether another program's transaction touched our table.
func (f *Firewall) tableChanged(batch []netlink.Message) bool {
	for _, m := range batch {
		if len(m.Data) < nfgenmsgLen || m.Data[0] != unix.NFPROTO_INET || f.isOwn(m.Header.PID) {
			continue
		}
		attrs, err := netlink.NewAttributeDecoder(m.Data[nfgenmsgLen:])
		if err != nil {
			return true // what cannot be read might be anything
		}
		for attrs.Next() {
			if attrs.Type() == attrTable && attrs.String() == tableName {
				return true
			}
		}
	}
	return false
}

// isOwn reports whether a netlink port is one of our connections to nftables.
func (f *Firewall) isOwn(port uint32) bool {
	f.portsMu.Lock()
	defer f.portsMu.Unlock()
	return f.ports[port]
}

// remember notes that a netlink port is ours. Connections are few: a new one is made only after an error.
func (f *Firewall) remember(c *netlink.Conn) error {
	f.portsMu.Lock()
	defer f.portsMu.Unlock()
	if f.ports == nil {
		f.ports = map[uint32]bool{}
	}
	f.ports[c.PID()] = true
	return nil
}

// routingChanged reports whether something that boxes depend on was deleted or switched off. The gateway itself deletes
// such things only when it is uninstalled.
func (f *Firewall) routingChanged(batch []netlink.Message) bool {
	for _, m := range batch {
		switch uint16(m.Header.Type) {
		case unix.RTM_DELRULE:
			if !f.routingIntact() {
				return true
			}
		case unix.RTM_DELADDR:
			if f.isGatewayAddr(m.Data) {
				return true
			}
		case unix.RTM_DELROUTE:
			if f.isOwnRoute(m.Data) {
				return true
			}
		case unix.RTM_NEWLINK:
			if f.linkChanged(m.Data) {
				return true
			}
		}
	}
	return false
}

// routingIntact reports whether every routing rule of ours is in its place. What cannot be read is not.
func (f *Firewall) routingIntact() bool {
	for _, fam := range families {
		present := map[int]uint32{} // priority → mark
		rules, err := f.nl.RuleList(nlFamily(fam))
		if err != nil {
			return false
		}
		for _, r := range rules {
			present[r.Priority] = r.Mark
		}
		for _, r := range f.routingRules(fam) {
			if mark, ok := present[r.Priority]; !ok || mark != r.Mark {
				return false
			}
		}
	}
	return true
}

// isGatewayAddr reads an ifaddrmsg (rtnetlink(7)) and reports whether it is about an address of the gateway.
func (f *Firewall) isGatewayAddr(data []byte) bool {
	if len(data) < unix.SizeofIfAddrmsg {
		return true
	}
	attrs, err := netlink.NewAttributeDecoder(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return true
	}
	for attrs.Next() {
		if a, ok := netip.AddrFromSlice(attrs.Bytes()); ok && attrs.Type() == unix.IFA_ADDRESS {
			return a == f.cfg.GatewayV4 || a == f.cfg.GatewayV6
		}
	}
	return false
}

// isOwnRoute reads an rtmsg (rtnetlink(7)) and reports whether the route is in the table of the transparent proxy.
func (f *Firewall) isOwnRoute(data []byte) bool {
	if len(data) < unix.SizeofRtMsg {
		return true
	}
	attrs, err := netlink.NewAttributeDecoder(data[unix.SizeofRtMsg:])
	if err != nil {
		return true
	}
	for attrs.Next() {
		if attrs.Type() == unix.RTA_TABLE && len(attrs.Bytes()) == 4 {
			return attrs.Uint32() == proxyTable
		}
	}
	return false
}

// linkChanged reads an ifinfomsg (rtnetlink(7)) and reports whether the link is a box's and is no longer as it must be.
// What counts is its state now: the event may be about a step of our own.
func (f *Firewall) linkChanged(data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg {
		return true
	}
	index := int(int32(binary.NativeEndian.Uint32(data[4:8])))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		if b.index != index {
			continue
		}
		link, err := f.nl.LinkByIndex(index)
		if err != nil {
			var gone vnl.LinkNotFoundError
			return !errors.As(err, &gone)
		}
		a := link.Attrs()
		return a.RawFlags&unix.IFF_UP == 0 || a.Group != linkGroup || a.Name != b.link
	}
	return false
}
