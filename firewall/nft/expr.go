package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

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
	return match{meta(expr.MetaKeyIIFNAME), &expr.Dynset{SrcRegKey: r1, SetName: s.Name, SetID: s.ID,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{state}}}
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
