package dns

import (
	"encoding/binary"
	"net/netip"

	mdns "github.com/miekg/dns"
)

// Sizes in bytes of the parts of a direct answer.
const (
	addressSize  = 2 + fixedPart + 16  // of an AAAA record, its owner compressed; an A record is shorter
	edeSize      = 6                   // of the option for an extended error, without its text
	questionName = 0xc000 | headerSize // the owner of a record: a pointer to the name in the question
)

// finish completes the message that begins at out[begin] with the ID, flags and question of the query, and with an OPT
// record if the client sent one.
func (a *directAnswer) finish(out []byte, begin int, wire []byte) []byte {
	m := out[begin:]
	m[0], m[1] = wire[0], wire[1]
	m[2] = flagResponse | wire[2]&flagRecursion
	m[3] = flagAvailable | wire[3]&flagUnchecked | m[3]&0xf
	copy(m[headerSize:], a.question)
	if !a.edns {
		return out
	}
	binary.BigEndian.PutUint16(m[10:], 1)
	flags := uint32(0)
	if a.do {
		flags = optDo
	}
	out = append(out, 0)
	out = binary.BigEndian.AppendUint16(out, mdns.TypeOPT)
	out = binary.BigEndian.AppendUint16(out, udpSize)
	out = binary.BigEndian.AppendUint32(out, flags)
	return binary.BigEndian.AppendUint16(out, 0) // no options yet
}

// sinkSize is an upper bound of the bytes that appendDenied appends.
func (a *directAnswer) sinkSize() int {
	return headerSize + len(a.question) + addressSize + optSize + edeSize + len(a.verdict.Reason) + 1 + len(a.verdict.Rule)
}

// appendDenied is [Server.deny] for a plain query; the caller fills in the event. sink must be zero unless rcode is
// success.
func (s *Server) appendDenied(dst, wire []byte, a *directAnswer, rcode int, sink netip.Addr) []byte {
	out := append(dst, 0, 0, 0, byte(rcode), 0, 1, 0, 0, 0, 0, 0, 0)
	out = append(out, a.question...)
	if sink.IsValid() {
		out[len(dst)+7] = 1
		out = appendAddress(out, sink, sinkTTL)
	}
	out = a.finish(out, len(dst), wire)
	if !a.edns {
		return out
	}
	options := len(out)
	out = binary.BigEndian.AppendUint16(out, mdns.EDNS0EDE)
	out = binary.BigEndian.AppendUint16(out, 0)
	out = binary.BigEndian.AppendUint16(out, edeBlocked)
	out = appendBlocked(out, a.verdict)
	binary.BigEndian.PutUint16(out[options-2:], uint16(len(out)-options))
	binary.BigEndian.PutUint16(out[options+2:], uint16(len(out)-options-4))
	return out
}

// appendAddress appends an address record of the name in the question.
func appendAddress(out []byte, a netip.Addr, ttl uint32) []byte {
	qtype := mdns.TypeA
	if a.Is6() {
		qtype = mdns.TypeAAAA
	}
	out = binary.BigEndian.AppendUint16(out, questionName)
	out = binary.BigEndian.AppendUint16(out, qtype)
	out = binary.BigEndian.AppendUint16(out, mdns.ClassINET)
	out = binary.BigEndian.AppendUint32(out, ttl)
	out = binary.BigEndian.AppendUint16(out, uint16(a.BitLen()/8))
	if a.Is4() {
		b := a.As4()
		return append(out, b[:]...)
	}
	b := a.As16()
	return append(out, b[:]...)
}

// sinkOf returns the sink for queries of a type, or the zero Addr for types other than A and AAAA.
func (s *Server) sinkOf(qtype uint16) netip.Addr {
	switch qtype {
	case mdns.TypeA:
		return s.sinkV4
	case mdns.TypeAAAA:
		return s.sinkV6
	}
	return netip.Addr{}
}
