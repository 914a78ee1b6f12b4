package watch

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/firewall/route"
)

// nfgenmsg (linux/netfilter/nfnetlink.h) precedes the attributes of an nftables event: family, version, resource.
const nfgenmsgLen = 4

// attrTable is the attribute that names the table in events about tables, chains, rules, sets, elements and objects alike
// (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …).
const attrTable = 1

// tableChanged records damage if another program's transaction touched our table.
func (w *Watcher) tableChanged(batch []netlink.Message, d *damage) {
	for _, m := range batch {
		if len(m.Data) < nfgenmsgLen || m.Data[0] != unix.NFPROTO_INET || w.table.IsOwn(m.Header.PID) {
			continue
		}
		attrs, err := netlink.NewAttributeDecoder(m.Data[nfgenmsgLen:])
		if err != nil {
			d.addAll() // an event that cannot be parsed might be anything
			return
		}
		for attrs.Next() {
			if attrs.Type() == attrTable && attrs.String() == network.TableName {
				d.addAll()
				return
			}
		}
	}
}

// routingChanged records damage to routing state that boxes depend on. It checks the current state, because the event may
// be about a step of our own.
func (w *Watcher) routingChanged(batch []netlink.Message, d *damage) {
	for _, m := range batch {
		switch uint16(m.Header.Type) {
		case unix.RTM_DELRULE:
			if !w.routing.Intact() {
				d.addAll()
			}
		case unix.RTM_DELADDR:
			if w.isGatewayAddr(m.Data) {
				d.addAll()
			}
		case unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
			w.routeChanged(m.Data, m.Header.Type == unix.RTM_DELROUTE, d)
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			// A box can take its end down and up as fast as it likes, which must not delay a repair.
			if !w.ifBroken(indexAt(m.Data, 4), d, w.linkIntact) {
				d.uplinkChanged()
			}
		case unix.RTM_DELQDISC, unix.RTM_DELTFILTER, unix.RTM_NEWTFILTER:
			w.ifBroken(indexAt(m.Data, 4), d, w.gateIntact)
		case rtmNewNetconf:
			w.netconfChanged(m.Data, d)
		}
	}
}

// isGatewayAddr parses an ifaddrmsg (rtnetlink(7)) and reports whether it is about an address of the gateway.
func (w *Watcher) isGatewayAddr(data []byte) bool {
	if len(data) < unix.SizeofIfAddrmsg {
		return true
	}
	attrs, err := netlink.NewAttributeDecoder(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return true
	}
	for attrs.Next() {
		if a, ok := netip.AddrFromSlice(attrs.Bytes()); ok && attrs.Type() == unix.IFA_ADDRESS {
			return a == w.routing.GatewayV4 || a == w.routing.GatewayV6
		}
	}
	return false
}

// routeChanged parses an rtmsg (rtnetlink(7)) about a route that was deleted or replaced. The routes of the transparent
// proxy, the pools and the boxes are ours.
func (w *Watcher) routeChanged(data []byte, deleted bool, d *damage) {
	if len(data) < unix.SizeofRtMsg {
		d.addAll()
		return
	}
	attrs, err := netlink.NewAttributeDecoder(data[unix.SizeofRtMsg:])
	if err != nil {
		d.addAll()
		return
	}
	var table uint32
	var dst netip.Addr
	var out int // its outgoing interface
	for attrs.Next() {
		switch attrs.Type() {
		case unix.RTA_TABLE:
			table = attrs.Uint32()
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(attrs.Bytes())
		case unix.RTA_OIF:
			out = int(attrs.Int32())
		}
	}
	prefix := netip.PrefixFrom(dst, int(data[1])) // rtm_dst_len
	if prefix.Bits() <= 1 {                       // a default route, or half of one
		d.uplinkChanged()
	}
	switch {
	case table == route.ProxyTable && deleted, deleted && w.isPool(prefix) && !w.routing.PoolIntact(prefix):
		d.addAll()
	case table == unix.RT_TABLE_MAIN && dst.IsValid() && prefix.IsSingleIP():
		w.owner.BoxOf(dst, func(b Box) {
			if deleted || out != b.Index { // otherwise it is right, as after our own change
				d.suspectRoute(dst)
			}
		})
	}
}

// checkRoutes checks the routes to boxes' addresses that events have put in doubt. It does so for all of them together,
// when the events have ended, because the kernel can only list all routes.
func (w *Watcher) checkRoutes(d *damage) {
	suspects := d.takeSuspects()
	if len(suspects) == 0 {
		return
	}
	var leads map[netip.Addr]int
	w.owner.BoxesOf(suspects, func(a netip.Addr, b Box) {
		if leads == nil {
			leads = w.links.Routes()
		}
		if leads[a] != b.Index {
			d.add(false, b.ID)
		}
	})
}

func (w *Watcher) isPool(p netip.Prefix) bool { return p == w.routing.PoolV4 || p == w.routing.PoolV6 }

// indexAt reads an interface index from a message's header; 0 if it is too short.
func indexAt(data []byte, offset int) int {
	if len(data) < offset+4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(data[offset:])))
}

// ifBroken records damage to the box whose host-side interface has the index, if the interface is not intact. It reports
// whether there is such a box.
func (w *Watcher) ifBroken(index int, d *damage, intact func(Box) bool) (isBoxes bool) {
	w.owner.BoxAt(index, func(b Box) {
		isBoxes = true
		if !intact(b) {
			d.add(false, b.ID)
		}
	})
	return isBoxes
}

func (w *Watcher) linkIntact(b Box) bool    { return w.links.Intact(b.Index, b.Link) }
func (w *Watcher) gateIntact(b Box) bool    { return w.links.GateIntact(b.Index) }
func (w *Watcher) sysctlsIntact(b Box) bool { return w.links.SysctlsIntact(b.Link) }

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

// netconfChanged records that forwarding was disabled, globally or for a box, or the reverse path check of a box.
func (w *Watcher) netconfChanged(data []byte, d *damage) {
	if len(data) < netconfHeader {
		return
	}
	attrs, err := netlink.NewAttributeDecoder(data[netconfHeader:])
	if err != nil {
		d.addAll()
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
		d.addAll()
	default:
		w.ifBroken(index, d, w.sysctlsIntact)
	}
}
