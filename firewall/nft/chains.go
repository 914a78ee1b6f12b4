package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy"
)

// writeGuard writes the first checks of a packet: its source must be the box's own and its shape plain.
func (t *txn) writeGuard(c *Config, s *staticSets) {
	t.rule(chainGuard, "", fromBox(), jumpTo(chainGuardBox))
	t.rule(chainGuard, "the host's own packets", fromLoopback(), accept())
	for _, pool := range []netip.Prefix{c.PoolV4, c.PoolV6} {
		t.rule(chainGuard, "pool addresses belong to boxes", sourceIn(pool), counted(countForeign), drop())
		t.rule(chainGuard, "nothing outside opens connections into the pool", destIn(pool), counted(countForeign), drop())
	}
	for _, f := range network.Families {
		t.rule(chainGuardBox, "", ofFamily(f), ifaceAnd(expr.MetaKeyIIFNAME, addr(f, true, r2)),
			match{lookup(s.sources[f])}, jumpTo(chainShape))
	}
	for _, p := range []string{"::/128", "fe80::/10"} {
		t.rule(chainGuardBox, "not needed: both ends have permanent neighbours", sourceIn(netip.MustParsePrefix(p)),
			proto(unix.IPPROTO_ICMPV6), counted(countNeighbour), drop())
	}
	t.rule(chainGuardBox, "", refuse(policy.ReasonSpoofed))

	header := expr.PayloadBaseNetworkHeader
	t.rule(chainShape, "fragments", ofFamily(network.V4), field(header, 6, []byte{0x3f, 0xff}, neq([]byte{0, 0})),
		refuse(policy.ReasonProtocol))
	t.rule(chainShape, "IP options", ofFamily(network.V4), field(header, 0, []byte{0x0f}, neq([]byte{5})),
		refuse(policy.ReasonProtocol))
	for _, h := range []uint8{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS} {
		t.rule(chainShape, "extension header or fragment", hasExtension(h), refuse(policy.ReasonProtocol))
	}
}

// ifaceAnd loads an interface name and another value as one key.
func ifaceAnd(name expr.MetaKey, second expr.Any) match { return match{meta(name), second} }

// writeJudge writes the judgement of every packet of a box, whether or not its connection is known.
func (t *txn) writeJudge(c *Config, s *staticSets) {
	t.rule(chainJudge, "", fromBox(), jumpTo(chainJudgeBox))
	t.rule(chainJudge, "answers to what boxes sent out", ctState(stateEstablished|stateRelated), isReply(),
		match{ctMark(r1), lookup(s.flows)}, setMark(network.MarkForward))

	chain := chainJudgeBox
	known := t.anonymous(nftables.TypeInetProto, bytesOf(unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
		unix.IPPROTO_ICMPV6))
	t.rule(chain, "only TCP, UDP and ICMP", match{meta(expr.MetaKeyL4PROTO),
		&expr.Lookup{SourceRegister: r1, SetName: known.Name, SetID: known.ID, Invert: true}}, refuse(policy.ReasonProtocol))
	t.rule(chain, "", ctState(stateInvalid|stateUntracked), counted(countInvalid), drop())
	t.rule(chain, "", ctState(stateRelated), jump(chainRelated))
	t.rule(chain, "", isReply(), jumpTo(chainAnswer))
	t.rule(chain, "connections that the proxy has accepted", tcp, ctState(stateEstablished),
		transparentSocket(), admit(network.MarkProxy))
	t.rule(chain, "", ctState(stateNew), match{meta(expr.MetaKeyIIFNAME),
		&expr.Lookup{SourceRegister: r1, DestRegister: r1, IsDestRegSet: true, SetName: s.marks.Name, SetID: s.marks.ID},
		&expr.Ct{Key: expr.CtKeyMARK, Register: r1, SourceRegister: true}})
	t.judgeGatewayPorts(c)
	for _, a := range []netip.Addr{c.SinkV4, c.SinkV6} {
		t.rule(chain, "sink: the proxy reads the name and refuses it", destIs(a), tcp, jumpTo(chainProxy))
		t.rule(chain, "", destIs(a), refuse(policy.ReasonNotAllowed))
	}
	for _, kind := range []uint32{unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST} {
		t.rule(chain, "the host's own addresses", toLocal(kind), refuse(policy.ReasonHostPort))
	}
	t.rule(chain, "", match{meta(expr.MetaKeyIIFNAME), &expr.Lookup{SourceRegister: r1, DestRegister: 0, IsDestRegSet: true,
		SetName: s.boxes.Name, SetID: s.boxes.ID}})
	t.rule(chain, "", refuse(policy.ReasonUnknownBox))

	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		t.rule(chainAnswer, "answers to connections that the gateway opened", ctState(stateEstablished),
			destIs(a), admit(network.MarkLocal))
	}
	t.rule(chainAnswer, "", counted(countStray), drop())

	// An ICMP error quotes a packet of the connection that it is about, and a box can quote any packet, even another
	// box's.
	t.rule(chainRelated, "about a connection that is forwarded for this box", ifaceAnd(expr.MetaKeyIIFNAME, ctMark(r2)),
		match{lookup(s.replies)}, verdict(expr.VerdictReturn, ""))
	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		t.rule(chainRelated, "not needed: both ends know the link", destIs(a),
			counted(countStray), drop())
	}
	t.rule(chainRelated, "", refuse(policy.ReasonProtocol))
}

// judgeGatewayPorts opens the only ports of the host that boxes can reach.
func (t *txn) judgeGatewayPorts(c *Config) {
	for _, l4 := range []match{tcp, udp} {
		t.rule(chainJudgeBox, "DNS, to any server: see chain dns", l4, destPort(53), jumpTo(chainGateway))
		for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
			t.rule(chainJudgeBox, "the gateway's DNS", destIs(a), l4, destPort(c.DNSPort), jumpTo(chainGateway))
		}
	}
	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		t.rule(chainJudgeBox, "the explicit proxy", destIs(a), tcp, destPort(c.ExplicitPort), jumpTo(chainGateway))
	}
}

// writeTargets writes where a judged packet goes.
func (t *txn) writeTargets(c *Config, s *staticSets) {
	t.rule(chainGateway, "", jump(chainAdmitOwn))
	t.rule(chainGateway, "", admit(network.MarkLocal))
	t.rule(chainProxy, "", jump(chainAdmitOwn))
	for _, f := range network.Families {
		t.rule(chainProxy, "the destination is kept; the socket is the proxy's", ofFamily(f), tcp,
			toSocket(f, c.ProxyPort), admit(network.MarkProxy))
	}
	t.rule(chainProxy, "the proxy does not listen: closed", counted(countNoProxy), toHost(), jumpTo(chainReject))

	forwarded := match{meta(expr.MetaKeyIIFNAME), note(s.notes), ctMark(r1), &expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4,
		Mask: native32(^network.FlowForwarded), Xor: native32(network.FlowForwarded)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: r1, SourceRegister: true}}
	t.rule(chainPass, "", proto(unix.IPPROTO_ICMP), jumpTo(chainPassICMP))
	t.rule(chainPass, "", proto(unix.IPPROTO_ICMPV6), jumpTo(chainPassICMP))
	t.rule(chainPass, "", jump(chainAdmit))
	t.rule(chainPass, "", ctState(stateNew), forwarded)
	t.rule(chainPass, "", admit(network.MarkForward))

	for _, p := range []struct {
		f      network.Family
		proto  byte
		echo   byte
		errors []byte
		kinds  nftables.SetDatatype
	}{
		{network.V4, unix.IPPROTO_ICMP, 8, []byte{3, 11, 12}, nftables.TypeICMPType},
		{network.V6, unix.IPPROTO_ICMPV6, 128, []byte{1, 2, 3, 4}, nftables.TypeICMP6Type},
	} {
		kind := &expr.Payload{DestRegister: r1, Base: expr.PayloadBaseTransportHeader, Len: 1}
		t.rule(chainPassICMP, "echo request", ofFamily(p.f), proto(p.proto), match{kind, eq([]byte{p.echo})}, jumpTo(chainPing))
		set := t.anonymous(p.kinds, bytesOf(p.errors...))
		t.rule(chainPassICMP, "errors about a forwarded connection", ofFamily(p.f), proto(p.proto), ctState(stateRelated),
			match{kind, lookup(set)}, jumpTo(chainPing))
	}
	t.rule(chainPassICMP, "", refuse(policy.ReasonProtocol))
	t.rule(chainPing, "", ctState(stateNew), forwarded)
	t.rule(chainPing, "", perInterface(s.pings, &expr.Limit{Type: expr.LimitTypePkts, Rate: 10,
		Unit: expr.LimitTimeSecond, Burst: 20}), admit(network.MarkForward))
	t.rule(chainPing, "", counted(countPings), drop())
}

// writeAdmission keeps one box from filling the host's connection table. The two limits are separate, so that a box at
// its limit of connections can still look up names.
func (t *txn) writeAdmission(c *Config, s *staticSets) {
	const why = "concurrent connections per box"
	for chain, set := range map[string]*nftables.Set{chainAdmit: s.forwards, chainAdmitOwn: s.accepts} {
		t.rule(chain, why, ctState(stateNew), unconfirmed(), perInterface(set, &expr.Connlimit{Count: c.FlowLimit,
			Flags: expr.NFT_CONNLIMIT_F_INV}), refuse(policy.ReasonLimit))
	}
}

// unconfirmed matches the first packet of a connection. Later ones may be "new" too, until an answer arrives, and the
// kernel would count each as another connection.
func unconfirmed() match {
	const confirmed = 1 << 3 // IPS_CONFIRMED (linux/netfilter/nf_conntrack_common.h)
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: r1},
		&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4, Mask: native32(confirmed), Xor: native32(0)},
		eq(native32(0)),
	}
}

// transparentSocket matches packets for a socket with IP_TRANSPARENT, which takes privilege to set: the gateway's
// listeners have it, other programs on the same port do not. Without a socket it does not match.
func transparentSocket() match {
	return match{&expr.Socket{Key: expr.SocketKeyTransparent, Register: r1}, eq([]byte{1})}
}

// toSocket assigns the packet to the listener on loopback, or ends the rule if nothing listens there.
func toSocket(f network.Family, port uint16) match {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if f == network.V6 {
		loopback = netip.IPv6Loopback()
	}
	return match{
		&expr.Immediate{Register: r1, Data: loopback.AsSlice()},
		&expr.Immediate{Register: r2, Data: big16(port)},
		&expr.TProxy{Family: byte(f), TableFamily: byte(nftables.TableFamilyINet), RegAddr: r1, RegPort: r2},
	}
}

// writeHooks writes address translation, and a second check for packets that judge did not mark.
func (t *txn) writeHooks(c *Config, s *staticSets) {
	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		for _, l4 := range []match{tcp, udp} {
			t.rule(chainDNS, "", fromBox(), marked(network.MarkLocal), ofFamily(network.FamilyOf(a)), l4, destPort(53), match{
				&expr.Immediate{Register: r1, Data: a.AsSlice()},
				&expr.Immediate{Register: r2, Data: big16(c.DNSPort)},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(network.FamilyOf(a)), RegAddrMin: r1, RegProtoMin: r2}})
		}
	}
	t.rule(chainInput, "answers to the gateway", fromBox(), marked(network.MarkLocal), isReply(), accept())
	for _, l4 := range []match{tcp, udp} {
		t.rule(chainInput, "a port of the gateway, not of another program that took it", fromBox(), marked(network.MarkLocal), l4,
			transparentSocket(), accept())
	}
	for _, l4 := range []match{tcp, udp} {
		t.rule(chainInput, "the gateway does not listen: closed", fromBox(), marked(network.MarkLocal), l4, counted(countNoProxy),
			jumpTo(chainReject))
	}
	t.rule(chainInput, "", fromBox(), marked(network.MarkLocal), accept())
	t.rule(chainInput, "", fromBox(), marked(network.MarkProxy), accept())
	t.rule(chainInput, "", fromBox(), counted(countUnjudged), drop())

	t.rule(chainForward, "", fromBox(), notMarked(network.MarkForward), counted(countUnjudged), drop())
	t.rule(chainForward, "boxes never reach each other", fromBox(), toBox(), counted(countUnsolicited), drop())
	t.rule(chainForward, "answers", toBox(), ctState(stateEstablished|stateRelated), isReply(),
		ifaceAnd(expr.MetaKeyOIFNAME, ctMark(r2)), match{lookup(s.replies)}, accept())
	t.rule(chainForward, "", toBox(), counted(countUnsolicited), drop())

	for _, pool := range []netip.Prefix{c.PoolV4, c.PoolV6} {
		t.rule(chainHide, "", marked(network.MarkForward), notToBox(), sourceIn(pool), match{&expr.Masq{}})
		t.rule(chainLeak, "pool addresses stay inside", notToBox(), notToLoopback(), sourceIn(pool), counted(countLeak), drop())
	}
}
