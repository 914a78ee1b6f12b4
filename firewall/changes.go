package firewall

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	vnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nfgenmsg (linux/netfilter/nfnetlink.h) stands before the attributes of an nftables event: family, version, resource.
const nfgenmsgLen = 4

// attrTable is the attribute that names the table in events about tables, chains, rules, sets, elements and objects
// alike (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …).
const attrTable = 1

// tableChanged notes that another program's transaction touched our table.
func (f *Firewall) tableChanged(batch []netlink.Message, d *damage) {
	for _, m := range batch {
		if len(m.Data) < nfgenmsgLen || m.Data[0] != unix.NFPROTO_INET || f.isOwn(m.Header.PID) {
			continue
		}
		attrs, err := netlink.NewAttributeDecoder(m.Data[nfgenmsgLen:])
		if err != nil {
			d.all() // what cannot be read might be anything
			return
		}
		for attrs.Next() {
			if attrs.Type() == attrTable && attrs.String() == tableName {
				d.all()
				return
			}
		}
	}
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

// routingChanged notes what boxes depend on and is no longer as it must be. What counts is the state now: the event may be
// about a step of our own.
func (f *Firewall) routingChanged(batch []netlink.Message, d *damage) {
	for _, m := range batch {
		switch uint16(m.Header.Type) {
		case unix.RTM_DELRULE:
			if !f.routingIntact() {
				d.all()
			}
		case unix.RTM_DELADDR:
			if f.isGatewayAddr(m.Data) {
				d.all()
			}
		case unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
			f.routeChanged(m.Data, m.Header.Type == unix.RTM_DELROUTE, d)
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			f.ifBroken(indexAt(m.Data, 4), d, f.linkIntact)
		case unix.RTM_DELQDISC, unix.RTM_DELTFILTER, unix.RTM_NEWTFILTER:
			f.ifBroken(indexAt(m.Data, 4), d, f.gateIntact)
		case rtmNewNetconf:
			f.netconfChanged(m.Data, d)
		}
	}
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

// routeChanged reads an rtmsg (rtnetlink(7)) about a route that was deleted or replaced: those of the transparent proxy,
// of the pools and of the boxes are ours.
func (f *Firewall) routeChanged(data []byte, deleted bool, d *damage) {
	if len(data) < unix.SizeofRtMsg {
		d.all()
		return
	}
	attrs, err := netlink.NewAttributeDecoder(data[unix.SizeofRtMsg:])
	if err != nil {
		d.all()
		return
	}
	var table uint32
	var dst netip.Addr
	for attrs.Next() {
		switch attrs.Type() {
		case unix.RTA_TABLE:
			table = attrs.Uint32()
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(attrs.Bytes())
		}
	}
	prefix := netip.PrefixFrom(dst, int(data[1])) // rtm_dst_len
	switch {
	case table == proxyTable && deleted, deleted && f.isPool(prefix) && !f.poolIntact(prefix):
		d.all()
	case table == unix.RT_TABLE_MAIN && dst.IsValid() && prefix.IsSingleIP():
		f.mu.Lock()
		defer f.mu.Unlock()
		for id, b := range f.boxes {
			if slices.Contains(b.sources, dst) && !f.boxRouteIntact(b, dst) {
				d.add(false, id)
			}
		}
	}
}

func (f *Firewall) isPool(p netip.Prefix) bool { return p == f.cfg.PoolV4 || p == f.cfg.PoolV6 }

// poolIntact reports whether the route of the pool is there. What cannot be read is not.
func (f *Firewall) poolIntact(pool netip.Prefix) bool {
	routes, err := f.nl.RouteListFiltered(nlFamily(familyOf(pool.Addr())), f.poolRoute(familyOf(pool.Addr())),
		vnl.RT_FILTER_DST|vnl.RT_FILTER_TYPE)
	return err == nil && len(routes) > 0
}

func (f *Firewall) boxRouteIntact(b *box, a netip.Addr) bool {
	routes, err := f.nl.RouteListFiltered(nlFamily(familyOf(a)), &vnl.Route{Dst: hostNet(a)}, vnl.RT_FILTER_DST)
	return err == nil && len(routes) > 0 && routes[0].LinkIndex == b.index
}

// indexAt reads an interface index of a message's header; 0 if there is none.
func indexAt(data []byte, offset int) int {
	if len(data) < offset+4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(data[offset:])))
}

// ifBroken notes the box whose host-side interface has the index if the interface is not intact.
func (f *Firewall) ifBroken(index int, d *damage, intact func(*box) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, b := range f.boxes {
		if b.index == index && !intact(b) {
			d.add(false, id)
		}
	}
}

// linkIntact reports whether the interface is there, up, and known to the rules by group and name.
func (f *Firewall) linkIntact(b *box) bool {
	link, err := f.nl.LinkByIndex(b.index)
	if err != nil {
		return false
	}
	a := link.Attrs()
	return a.RawFlags&unix.IFF_UP != 0 && a.Group == linkGroup && a.Name == b.link
}

// gateIntact reports whether the filter that marks packets as not judged is on the interface.
func (f *Firewall) gateIntact(b *box) bool {
	link, err := f.nl.LinkByIndex(b.index)
	if err != nil {
		var gone vnl.LinkNotFoundError
		return errors.As(err, &gone) // another event tells of that
	}
	filters, err := f.nl.FilterList(link, vnl.HANDLE_MIN_INGRESS)
	return err == nil && slices.ContainsFunc(filters, func(x vnl.Filter) bool {
		bpf, ok := x.(*vnl.BpfFilter)
		return ok && bpf.Name == gateName && bpf.DirectAction && bpf.Attrs().Priority == gatePriority
	})
}

// Messages about the sysctls of interfaces (linux/netconf.h).
const (
	rtmNewNetconf    = 80 // RTM_NEWNETCONF
	netconfHeader    = 4  // struct netconfmsg, aligned
	netconfIndex     = 1  // NETCONFA_IFINDEX
	netconfForward   = 2  // NETCONFA_FORWARDING
	netconfRPFilter  = 3  // NETCONFA_RP_FILTER
	netconfAllLinks  = -1 // NETCONFA_IFINDEX_ALL
	netconfStrictRPF = 1
)

// netconfChanged notes forwarding that was switched off, for all or for a box, and a reverse path check of a box that was.
func (f *Firewall) netconfChanged(data []byte, d *damage) {
	if len(data) < netconfHeader {
		return
	}
	attrs, err := netlink.NewAttributeDecoder(data[netconfHeader:])
	if err != nil {
		d.all()
		return
	}
	index, wrong := 0, false
	for attrs.Next() {
		switch attrs.Type() {
		case netconfIndex:
			index = int(attrs.Int32())
		case netconfForward:
			wrong = wrong || attrs.Uint32() == 0
		case netconfRPFilter:
			wrong = wrong || index != netconfAllLinks && attrs.Uint32() != netconfStrictRPF
		}
	}
	switch {
	case !wrong:
	case index == netconfAllLinks:
		d.all()
	default:
		f.ifBroken(index, d, f.sysctlsIntact)
	}
}

// sysctlsIntact looks at the values now: an interface that is being made has others for a moment.
func (f *Firewall) sysctlsIntact(b *box) bool {
	return inNamespace(f.ns, func() error {
		for _, s := range linkSysctls(b.link) {
			have, err := readSysctl(s.path)
			if err == nil && have != s.value {
				err = errors.New(s.path + " is " + have)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) { // the interface is gone: another event tells of that
				return err
			}
		}
		return nil
	}) == nil
}
