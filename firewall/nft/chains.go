package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy/name"
)

// writeGuard writes the first checks of a packet: its source must be an address of the box and its headers plain.
func (t *txn) writeGuard(c *Config, s *staticSets) {
	t.c.FlushSet(s.sent) // its elements keep the previous rate
	t.rule(chainGuard, "", fromBox(), jumpTo(chainGuardBox))
	t.rule(chainGuard, "the host's own packets", fromLoopback(), accept())
	for _, pool := range []netip.Prefix{c.PoolV4, c.PoolV6} {
		f := network.FamilyOf(pool.Addr())
		foreign := chainForeign + suffix(f)
		t.rule(chainGuard, "", ofFamily(f), jumpTo(foreign))
		t.rule(foreign, "pool addresses belong to boxes", within(pool, true), counted(countForeign), drop())
		t.rule(foreign, "nothing outside opens connections into the pool", within(pool, false), counted(countForeign), drop())
	}
	t.rule(chainGuardBox, "boxes with a rate of their own", match{meta(expr.MetaKeyIIFNAME), gotoMapped(s.sends)})
	if c.SendRate > 0 {
		t.rule(chainGuardBox, "bytes a second per box", perInterface(s.sent, sendOver(c.SendRate)), counted(countSent), drop())
	}
	for _, chain := range []string{chainGuardBox, chainSource} {
		t.checkSource(chain, s)
	}

	// The first eight bytes of the header contain its length, and the flag and offset of a fragment.
	t.rule(chainShape+suffix(network.V4), "fragments and IP options", field(expr.PayloadBaseNetworkHeader, 0,
		[]byte{0x0f, 0, 0, 0, 0, 0, 0x3f, 0xff}, neq([]byte{5, 0, 0, 0, 0, 0, 0, 0})), refuse(name.ReasonProtocol))
	for _, h := range []uint8{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS} {
		t.rule(chainShape+suffix(network.V6), "extension header or fragment", hasExtension(h), refuse(name.ReasonProtocol))
	}
	for _, f := range network.Families {
		t.rule(chainShape+suffix(f), "lookups need no entry in the connection table", udp, destPort(53), notrack())
	}
}

// checkSource writes the rules that let a box send only from its own addresses.
func (t *txn) checkSource(chain string, s *staticSets) {
	for _, f := range network.Families {
		t.rule(chain, "", ofFamily(f), ifaceAnd(expr.MetaKeyIIFNAME, addr(f, true, r2)),
			match{lookup(s.sources[f])}, jumpTo(chainShape+suffix(f)))
	}
	for _, p := range []string{"::/128", "fe80::/10"} {
		t.rule(chain, "not needed: both ends have permanent neighbours", sourceIn(netip.MustParsePrefix(p)),
			proto(unix.IPPROTO_ICMPV6), counted(countNeighbour), drop())
	}
	t.rule(chain, "", refuse(name.ReasonSpoofed))
}

// ifaceAnd loads an interface name and another value as one key.
func ifaceAnd(name expr.MetaKey, second expr.Any) match { return match{meta(name), second} }

// writeJudge writes the chain that decides about every packet of a box, whether or not its connection is known.
func (t *txn) writeJudge(c *Config, s *staticSets) {
	t.rule(chainJudge, "", fromBox(), jumpTo(chainJudgeBox))
	t.rule(chainJudge, "answers to what boxes sent out", isReply(), match{ctMark(r1), lookup(s.flows)}, setMark(network.MarkForward))

	chain := chainJudgeBox
	known := t.anonymous(nftables.TypeInetProto, bytesOf(unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
		unix.IPPROTO_ICMPV6))
	t.rule(chain, "", ctState(stateEstablished), jump(chainKnown))
	t.rule(chain, "DNS, to any server", udp, destPort(53), jumpTo(chainLookup))
	t.rule(chain, "only TCP, UDP and ICMP", match{meta(expr.MetaKeyL4PROTO),
		&expr.Lookup{SourceRegister: r1, SetName: known.Name, SetID: known.ID, Invert: true}}, refuse(name.ReasonProtocol))
	t.rule(chain, "", ctState(stateInvalid|stateUntracked), counted(countInvalid), drop())
	t.rule(chain, "", ctState(stateRelated), jump(chainRelated))
	t.rule(chain, "", isReply(), jumpTo(chainAnswer))
	t.rule(chain, "", ctState(stateNew), match{meta(expr.MetaKeyIIFNAME),
		&expr.Lookup{SourceRegister: r1, DestRegister: r1, IsDestRegSet: true, SetName: s.marks.Name, SetID: s.marks.ID},
		&expr.Ct{Key: expr.CtKeyMARK, Register: r1, SourceRegister: true}})
	t.rule(chain, "DNS, to any server", tcp, destPort(53), jumpTo(chainLookupTCP))
	t.judgeOwn(c)
	local := t.anonymous(nftables.TypeFIBAddr, []nftables.SetElement{{Key: native32(unix.RTN_LOCAL)},
		{Key: native32(unix.RTN_BROADCAST)}, {Key: native32(unix.RTN_ANYCAST)}})
	t.rule(chain, "the host's own addresses", match{destType(), lookup(local)}, refuse(name.ReasonHostPort))
	t.rule(chain, "", match{meta(expr.MetaKeyIIFNAME), gotoMapped(s.boxes)})
	t.rule(chain, "", refuse(name.ReasonUnknownBox))

	t.judgeKnown(c, s)
	t.judgeRelated(c, s)
}

// judgeKnown writes the chain that most packets take. The first packet of a connection that is forwarded for the box has
// passed the rules for all boxes, that about protocols too; the active plan decides about each later packet. One of those
// rules may give another result by then: the destination may have become an address of the host. Until the plan protects
// it, such packets pass here, but reach no program of the host. Answers of the box never belong to such a connection: the
// box sent its first packet, and no forwarded connection leads back into the pool.
func (t *txn) judgeKnown(c *Config, s *staticSets) {
	t.rule(chainKnown, "connections that are forwarded for this box", ifaceAnd(expr.MetaKeyIIFNAME, ctMark(r2)),
		match{lookup(s.replies), gotoMapped(s.boxes)})
	t.rule(chainKnown, "connections that the proxy has accepted", tcp, transparentSocket(), admit(network.MarkProxy))
	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		t.rule(chainAnswer, "answers to connections that the gateway opened", ctState(stateEstablished),
			destIs(a), admit(network.MarkLocal))
	}
	t.rule(chainAnswer, "", counted(countStray), drop())
}

// judgeRelated writes the rules for ICMP errors. An ICMP error quotes a packet of the connection that it is about, and a
// box can quote any packet, even another box's.
func (t *txn) judgeRelated(c *Config, s *staticSets) {
	t.rule(chainRelated, "about a connection that is forwarded for this box", ifaceAnd(expr.MetaKeyIIFNAME, ctMark(r2)),
		match{lookup(s.replies)}, verdict(expr.VerdictReturn, ""))
	for _, a := range []netip.Addr{c.GatewayV4, c.GatewayV6} {
		t.rule(chainRelated, "not needed: both ends know the link", destIs(a),
			counted(countStray), drop())
	}
	t.rule(chainRelated, "", refuse(name.ReasonProtocol))
}

// judgeOwn opens the only ports of the host that boxes can reach, in addition to DNS, and sends packets for the sink to the
// proxy.
func (t *txn) judgeOwn(c *Config) {
	for _, own := range [][2]netip.Addr{{c.GatewayV4, c.SinkV4}, {c.GatewayV6, c.SinkV6}} {
		f := network.FamilyOf(own[0])
		set := t.anonymous(addrType(f), []nftables.SetElement{{Key: own[0].AsSlice()}, {Key: own[1].AsSlice()}})
		t.rule(chainJudgeBox, "", ofFamily(f), match{addr(f, false, r1), lookup(set)}, jump(chainOwn))
		gateway, sink := destIs(own[0]), destIs(own[1])
		t.rule(chainOwn, "the gateway's DNS", gateway, tcp, destPort(c.DNSPort), jumpTo(chainGateway))
		t.rule(chainOwn, "the explicit proxy", gateway, tcp, destPort(c.ExplicitPort), jumpTo(chainGateway))
		t.rule(chainOwn, "sink: the proxy reads the name; it refuses all but public URLs", sink, tcp, jumpTo(chainProxy))
		t.rule(chainOwn, "", sink, refuse(name.ReasonNotAllowed))
	}
}

// writeTargets writes the final chains of accepted packets.
func (t *txn) writeTargets(c *Config, s *staticSets) {
	t.rule(chainGateway, "", jump(chainAdmitOwn))
	t.rule(chainGateway, "", admit(network.MarkLocal))
	t.writeLookups(c)
	t.rule(chainProxy, "", jump(chainAdmitOwn))
	for _, f := range network.Families {
		t.rule(chainProxy, "the destination is kept; the socket is the proxy's", ofFamily(f), tcp,
			toSocket(loopback[f], c.ProxyPort), admit(network.MarkProxy))
	}
	t.rule(chainProxy, "the proxy does not listen: closed", counted(countNoProxy), toHost(), jumpTo(chainReject))

	forwarded := match{meta(expr.MetaKeyIIFNAME), addNote(s.notes), ctMark(r1), &expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4,
		Mask: native32(^network.FlowForwarded), Xor: native32(network.FlowForwarded)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: r1, SourceRegister: true}}
	icmp := t.anonymous(nftables.TypeInetProto, bytesOf(unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6))
	t.rule(chainPass, "", match{meta(expr.MetaKeyL4PROTO), lookup(icmp)}, jumpTo(chainPassICMP))
	t.rule(chainPass, "", ctState(stateNew), jump(chainPassNew))
	t.rule(chainPass, "", admit(network.MarkForward))
	t.rule(chainPassNew, "", jump(chainAdmit))
	t.rule(chainPassNew, "", forwarded)

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
	t.rule(chainPassICMP, "", refuse(name.ReasonProtocol))
	t.rule(chainPing, "", ctState(stateNew), forwarded)
	t.rule(chainPing, "", perInterface(s.pings, &expr.Limit{Type: expr.LimitTypePkts, Rate: 10,
		Unit: expr.LimitTimeSecond, Burst: 20}), admit(network.MarkForward))
	t.rule(chainPing, "", counted(countPings), drop())
}

// writeLookups sends DNS of any server to the gateway's DNS server. UDP has no connection to translate addresses by: for
// the gateway's own address the port is changed in the packet, and back in the answer (chain answers). Lookups at other
// servers keep their destination and are assigned to one of several sockets by the box's address; the server sends the
// answer from the address that was asked.
func (t *txn) writeLookups(c *Config) {
	own, unsummed := destIs(c.GatewayV4), setPort(2, c.DNSPort, expr.CsumTypeNone)
	t.rule(chainLookup, "the gateway's DNS", own, hasChecksum(), setPort(2, c.DNSPort, expr.CsumTypeInet), admit(network.MarkLocal))
	t.rule(chainLookup, "the same without a checksum, which stays absent", own, unsummed, admit(network.MarkLocal))
	t.rule(chainLookup, "the gateway's DNS", destIs(c.GatewayV6), setPort(2, c.DNSPort, expr.CsumTypeInet), admit(network.MarkLocal))
	for _, f := range network.Families {
		first := network.LookupAddr(f, 0).AsSlice()
		mask := make([]byte, len(first))
		mask[len(mask)-1] = network.LookupAddrs - 1
		t.rule(chainLookup, "other servers: a socket for each group of boxes", ofFamily(f), udp, match{addr(f, true, r1),
			&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: uint32(len(mask)), Mask: mask, Xor: first}},
			assign(f, c.DNSPort), admit(network.MarkProxy))
	}
	t.rule(chainLookup, "the gateway does not listen: closed", counted(countNoProxy), toHost(), jumpTo(chainReject))

	t.rule(chainLookupTCP, "connections that an earlier version translated", destChanged(), jumpTo(chainGateway))
	t.rule(chainLookupTCP, "", jump(chainAdmitOwn))
	for _, a := range c.Gateways() {
		t.rule(chainLookupTCP, "the server that was asked is kept; the socket is the gateway's", ofFamily(network.FamilyOf(a)), tcp,
			toSocket(a, c.DNSPort), admit(network.MarkProxy))
	}
	t.rule(chainLookupTCP, "the gateway does not listen: closed", counted(countNoProxy), toHost(), jumpTo(chainReject))

	t.rule(chainAnswers, "answers to lookups leave from port 53", toBox(), udp, sourcePort(c.DNSPort), notrack(),
		setPort(0, 53, expr.CsumTypeInet))
}

// writeAdmission keeps one box from filling the host's connection table. The limits are separate, so that a box at its
// limit of forwarded connections reaches the proxy, and the reverse. Lookups over UDP have no entries in that table.
func (t *txn) writeAdmission(c *Config, s *staticSets) {
	const why = "concurrent connections per box"
	lists, each, rest := c.divideLimit()
	for chain, room := range map[string]census{chainAdmit: s.forwards, chainAdmitOwn: s.accepts} {
		var full match
		if lists > 0 {
			full = match{meta(expr.MetaKeyIIFNAME), &expr.Numgen{Register: r2, Modulus: lists, Type: unix.NFT_NG_INCREMENTAL},
				update(room.lists, moreThan(each))}
		}
		t.rule(chain, why, ctState(stateNew), unconfirmed(), full, perInterface(room.rest, moreThan(rest)), refuse(name.ReasonLimit))
	}
}

// transparentSocket matches packets for a socket with IP_TRANSPARENT, a privileged option: the gateway's listeners have it,
// other programs on the same port do not. Without a socket it does not match.
func transparentSocket() match {
	return match{&expr.Socket{Key: expr.SocketKeyTransparent, Register: r1}, eq([]byte{1})}
}

// loopback has the addresses of the transparent proxy.
var loopback = map[network.Family]netip.Addr{network.V4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), network.V6: netip.IPv6Loopback()}

// toSocket assigns the packet to the gateway's socket at an address, or ends the rule if there is none.
func toSocket(at netip.Addr, port uint16) match {
	return append(match{&expr.Immediate{Register: r1, Data: at.AsSlice()}}, assign(network.FamilyOf(at), port)...)
}

// assign assigns the packet to the gateway's socket at the address in register 1, or ends the rule if there is none.
func assign(f network.Family, port uint16) match {
	return match{
		&expr.Immediate{Register: r2, Data: big16(port)},
		&expr.TProxy{Family: byte(f), TableFamily: byte(nftables.TableFamilyINet), RegAddr: r1, RegPort: r2},
	}
}

// notrack keeps the packet out of the connection table.
func notrack() match { return match{&expr.Notrack{}} }

// checksum is the offset of the checksum in the header of UDP.
const checksum = 6

// setPort changes the port of a UDP packet at the offset in its header, and its checksum with [expr.CsumTypeInet].
func setPort(offset uint32, port uint16, sum expr.PayloadCsumType) match {
	return match{
		&expr.Immediate{Register: r1, Data: big16(port)},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: r1, Base: expr.PayloadBaseTransportHeader,
			Offset: offset, Len: 2, CsumType: sum, CsumOffset: checksum},
	}
}

// hasChecksum matches a UDP packet with a checksum. Over IPv4 a sender may leave it out (RFC 768), and the kernel would make a
// wrong one of none.
func hasChecksum() match {
	return match{&expr.Payload{DestRegister: r1, Base: expr.PayloadBaseTransportHeader, Offset: checksum, Len: 2}, neq([]byte{0, 0})}
}

// writeHooks writes the translation of sources, and a second check that drops packets without a mark of the judge chain.
func (t *txn) writeHooks(c *Config, s *staticSets) {
	t.rule(chainInput, "", fromBox(), jumpTo(chainInputBox))
	t.rule(chainInputBox, "", marked(network.MarkProxy), accept())
	t.rule(chainInputBox, "", notMarked(network.MarkLocal), counted(countUnjudged), drop())
	t.rule(chainInputBox, "answers to the gateway", isReply(), accept())
	for _, l4 := range []match{tcp, udp} {
		t.rule(chainInputBox, "a port of the gateway, not of another program that took it", l4, transparentSocket(), accept())
	}
	for _, l4 := range []match{tcp, udp} {
		t.rule(chainInputBox, "the gateway does not listen: closed", l4, counted(countNoProxy), jumpTo(chainReject))
	}
	t.rule(chainInputBox, "", accept())

	t.rule(chainForward, "", fromBox(), jumpTo(chainForwardOut))
	t.rule(chainForward, "", toBox(), jumpTo(chainForwardIn))
	t.rule(chainForwardOut, "", notMarked(network.MarkForward), counted(countUnjudged), drop())
	t.rule(chainForwardOut, "another program changed the destination that judge allowed", destChanged(), counted(countMoved), drop())
	t.rule(chainForwardOut, "boxes never reach each other", toBox(), counted(countUnsolicited), drop())
	t.rule(chainForwardIn, "answers", isReply(), ifaceAnd(expr.MetaKeyOIFNAME, ctMark(r2)), match{lookup(s.replies)}, accept())
	t.rule(chainForwardIn, "", counted(countUnsolicited), drop())

	t.writeKeep()
	t.writeHide(c, s)
	for _, pool := range []netip.Prefix{c.PoolV4, c.PoolV6} {
		t.rule(chainLeak, "pool addresses stay inside", sourceIn(pool), notToBox(), notToLoopback(), counted(countLeak), drop())
	}
}

// writeKeep keeps the destination of connections to the proxy, by translating it to itself: the first translation of a connection is the
// only one. Otherwise rules for the host's own traffic, such as kube-proxy's for service addresses, would give the proxy another destination
// than the one that was judged.
func (t *txn) writeKeep() {
	for _, f := range network.Families {
		t.rule(chainKeep, "", ofFamily(f), marked(network.MarkProxy), match{addr(f, false, r1),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f), RegAddrMin: r1}})
	}
}

// match is a piece of a rule: a few expressions that must all match, or act, in order.
type match = []expr.Any

// r1 and r2 are the 16-byte registers that rules use. They are adjacent.
const (
	r1 = unix.NFT_REG_1
	r2 = unix.NFT_REG_2
)

// addrType returns the key type of an address set.
func addrType(f network.Family) nftables.SetDatatype {
	if f == network.V4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// suffix returns the suffix of set names of a family.
func suffix(f network.Family) string {
	if f == network.V4 {
		return "4"
	}
	return "6"
}

var (
	tcp = proto(unix.IPPROTO_TCP)
	udp = proto(unix.IPPROTO_UDP)
)

func readNative32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
func native32(v uint32) []byte     { return binary.NativeEndian.AppendUint32(nil, v) }
func big16(v uint16) []byte        { return binary.BigEndian.AppendUint16(nil, v) }

func cmp(op expr.CmpOp, data []byte) *expr.Cmp { return &expr.Cmp{Op: op, Register: r1, Data: data} }
func eq(data []byte) *expr.Cmp                 { return cmp(expr.CmpOpEq, data) }
func neq(data []byte) *expr.Cmp                { return cmp(expr.CmpOpNeq, data) }

func meta(key expr.MetaKey) *expr.Meta { return &expr.Meta{Key: key, Register: r1} }

func ofFamily(f network.Family) match { return match{meta(expr.MetaKeyNFPROTO), eq([]byte{byte(f)})} }
func proto(p byte) match              { return match{meta(expr.MetaKeyL4PROTO), eq([]byte{p})} }
func fromBox() match                  { return match{meta(expr.MetaKeyIIFGROUP), eq(native32(network.LinkGroup))} }
func toBox() match                    { return match{meta(expr.MetaKeyOIFGROUP), eq(native32(network.LinkGroup))} }
func notToBox() match                 { return match{meta(expr.MetaKeyOIFGROUP), neq(native32(network.LinkGroup))} }
func fromLoopback() match             { return match{meta(expr.MetaKeyIIF), eq(native32(1))} }
func notToLoopback() match            { return match{meta(expr.MetaKeyOIF), neq(native32(1))} }
func marked(m uint32) match           { return match{meta(expr.MetaKeyMARK), eq(native32(m))} }
func notMarked(m uint32) match        { return match{meta(expr.MetaKeyMARK), neq(native32(m))} }
func setMark(mark uint32) match {
	return match{
		&expr.Immediate{Register: r1, Data: native32(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: r1, SourceRegister: true},
	}
}

// toHost sets the packet type to "for this host", which routing requires of packets that it forwards. Packets of a box do
// not have that type until they are judged: see the filter of package link.
func toHost() match {
	return match{
		&expr.Immediate{Register: r1, Data: []byte{unix.PACKET_HOST}},
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: r1, SourceRegister: true},
	}
}

// admit accepts a box's packet. Its mark decides how it is routed.
func admit(mark uint32) match {
	return append(append(setMark(mark), toHost()...), accept()...)
}

// addr loads the source or destination address into a register.
func addr(f network.Family, source bool, reg uint32) *expr.Payload {
	p := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if f == network.V6 {
		p.Offset, p.Len = 24, 16
	}
	if source {
		p.Offset -= p.Len
	}
	return p
}

// within matches an address inside the prefix. The packet must be of the prefix's family.
func within(p netip.Prefix, source bool) match {
	load, first := addr(network.FamilyOf(p.Addr()), source, r1), p.Masked().Addr().AsSlice()
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		load.Len = uint32(p.Bits() / 8)
		return match{load, eq(first[:load.Len])}
	}
	return match{load, &expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: load.Len,
		Mask: prefixMask(p.Bits(), len(first)), Xor: make([]byte, len(first))}, eq(first)}
}

func prefixMask(bits, size int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

func sourceIn(p netip.Prefix) match {
	return append(ofFamily(network.FamilyOf(p.Addr())), within(p, true)...)
}

func destIs(a netip.Addr) match {
	return append(ofFamily(network.FamilyOf(a)), within(netip.PrefixFrom(a, a.BitLen()), false)...)
}

// destInSet matches a destination in an address set of the family.
func destInSet(f network.Family, set string) match {
	return append(ofFamily(f), addr(f, false, r1), &expr.Lookup{SourceRegister: r1, SetName: set})
}

// gotoMapped sends the packet to the target that the map has for the interface in register 1. Without a target it ends the
// rule.
func gotoMapped(m *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: r1, DestRegister: 0, IsDestRegSet: true, SetName: m.Name, SetID: m.ID}
}

func lookup(s *nftables.Set) *expr.Lookup {
	return &expr.Lookup{SourceRegister: r1, SetName: s.Name, SetID: s.ID}
}

// port loads the destination port of TCP or UDP.
func port() *expr.Payload {
	return &expr.Payload{DestRegister: r1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

func destPort(p uint16) match { return match{port(), eq(big16(p))} }

// sourcePort matches the source port of TCP or UDP.
func sourcePort(p uint16) match {
	return match{&expr.Payload{DestRegister: r1, Base: expr.PayloadBaseTransportHeader, Len: 2}, eq(big16(p))}
}

// ctState matches if the connection is in one of the states.
func ctState(states uint32) match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: r1},
		&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4, Mask: native32(states), Xor: native32(0)},
		neq(native32(0)),
	}
}

const (
	stateEstablished = expr.CtStateBitESTABLISHED
	stateRelated     = expr.CtStateBitRELATED
	stateNew         = expr.CtStateBitNEW
	stateInvalid     = expr.CtStateBitINVALID
	stateUntracked   = expr.CtStateBitUNTRACKED
)

// destChanged matches packets of connections whose destination was translated.
func destChanged() match {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: r1},
		&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4, Mask: native32(dstNAT), Xor: native32(0)},
		neq(native32(0)),
	}
}

// isReply matches packets against the direction in which the connection was opened.
func isReply() match {
	return match{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: r1}, eq([]byte{1})}
}

func ctMark(reg uint32) *expr.Ct { return &expr.Ct{Key: expr.CtKeyMARK, Register: reg} }

// destType loads the type of the destination in the kernel's routing: an address of the host, a broadcast, or another one.
func destType() *expr.Fib { return &expr.Fib{Register: r1, ResultADDRTYPE: true, FlagDADDR: true} }

// sourceNotLocal matches a source that is not an address of the host.
func sourceNotLocal() match {
	return match{&expr.Fib{Register: r1, ResultADDRTYPE: true, FlagSADDR: true}, neq(native32(unix.RTN_LOCAL))}
}

// field compares bytes of the network or transport header after masking them.
func field(base expr.PayloadBase, offset uint32, mask []byte, c *expr.Cmp) match {
	n := uint32(len(mask))
	return match{
		&expr.Payload{DestRegister: r1, Base: base, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: n, Mask: mask, Xor: make([]byte, n)},
		c,
	}
}

// hasExtension matches IPv6 packets with the extension header.
func hasExtension(header uint8) match {
	return match{&expr.Exthdr{DestRegister: r1, Type: header, Len: 1,
		Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6}, eq([]byte{1})}
}

func verdict(kind expr.VerdictKind, chain string) match {
	return match{&expr.Verdict{Kind: kind, Chain: chain}}
}

func jump(chain string) match   { return verdict(expr.VerdictJump, chain) }
func jumpTo(chain string) match { return verdict(expr.VerdictGoto, chain) }
func accept() match             { return verdict(expr.VerdictAccept, "") }
func drop() match               { return verdict(expr.VerdictDrop, "") }
func counter() match            { return match{&expr.Counter{}} }

// counted increments a named counter, which survives a restart of the gateway.
func counted(name string) match {
	return match{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

// SnapLength is how many bytes of a refused packet are logged: the IP header and the ports after it.
const SnapLength = 64

// perInterface keeps a statement's state for each interface in the set. A limit ends the rule when it is exceeded.
func perInterface(s *nftables.Set, state expr.Any) match {
	return match{meta(expr.MetaKeyIIFNAME), update(s, state)}
}

// update keeps a statement's state for the key that starts in register 1.
func update(s *nftables.Set, state expr.Any) *expr.Dynset {
	return &expr.Dynset{SrcRegKey: r1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{state}}
}

// logTo sends the packet's headers to the reader of the NFLOG group, with the reason.
func logTo(group uint16, prefix string) match {
	return match{&expr.Log{Group: group, Snaplen: SnapLength, Data: []byte(prefix),
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN}}
}

// bytesOf returns the elements of a set of single bytes.
func bytesOf(values ...byte) []nftables.SetElement {
	var out []nftables.SetElement
	for _, v := range values {
		out = append(out, nftables.SetElement{Key: []byte{v}})
	}
	return out
}
