package dns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"

	mdns "github.com/miekg/dns"

	"boxgate/dns/outbound"
	"boxgate/policy/name"
)

// query holds the parts of a box's message that the server uses.
type query struct {
	msg   mdns.Msg // header and question; the other sections are not kept
	name  string   // as asked, in presentation format
	qtype uint16
	opt   *mdns.OPT // nil: the client does not use EDNS
	mute  bool      // gets no answer
}

// badQuery is the refusal of a query that boxes may not send.
type badQuery struct {
	rcode  int
	reason name.Reason
	ede    uint16
}

var (
	formatError    = &badQuery{mdns.RcodeFormatError, name.ReasonBadRequest, edeNone}
	badVersion     = &badQuery{mdns.RcodeBadVers, name.ReasonProtocol, edeNone}
	notImplemented = &badQuery{mdns.RcodeNotImplemented, name.ReasonProtocol, edeNotSupported}
	notServed      = &badQuery{mdns.RcodeRefused, name.ReasonProtocol, edeNotSupported}
)

// parseQuery parses a message from a box. On error it returns the parts parsed so far.
func parseQuery(wire []byte) (query, *badQuery) {
	var q query
	if len(wire) < headerSize || wire[2]&0x80 != 0 {
		q.mute = true // answering responses would let two servers talk forever
		return q, formatError
	}
	// The opcode is checked first: in an update or a notify, the section after the header is not a question.
	if opcode := int(wire[2]>>3) & 0xf; opcode != mdns.OpcodeQuery {
		return q, notImplemented
	}
	var m mdns.Msg
	if m.Unpack(wire) != nil || !isWhole(&m, wire) || len(m.Answer)+len(m.Ns) > 0 {
		return q, formatError
	}
	q.msg = mdns.Msg{MsgHdr: m.MsgHdr, Question: m.Question}
	q.name, q.qtype = m.Question[0].Name, m.Question[0].Qtype
	if bad := q.readOPT(m.Extra); bad != nil {
		return q, bad
	}
	if m.Question[0].Qclass != mdns.ClassINET || isMeta(q.qtype) {
		return q, notServed
	}
	return q, nil
}

// isWhole reports whether m has exactly one question and all the records that the header of wire announces. Unpack
// accepts truncated messages as shorter ones.
func isWhole(m *mdns.Msg, wire []byte) bool {
	_, end, err := mdns.UnpackDomainName(wire, headerSize)
	return err == nil && end+4 <= len(wire) && binary.BigEndian.Uint16(wire[4:]) == 1 && len(m.Question) == 1 &&
		int(binary.BigEndian.Uint16(wire[10:])) == len(m.Extra)
}

// readOPT finds the OPT record; RFC 6891, section 6.1.1 allows one, and its owner is the root.
func (q *query) readOPT(extra []mdns.RR) *badQuery {
	for _, rr := range extra {
		opt, ok := rr.(*mdns.OPT)
		if !ok {
			continue
		}
		if q.opt != nil || opt.Hdr.Name != "." {
			return formatError
		}
		q.opt = opt
	}
	if q.opt != nil && q.opt.Version() != 0 {
		return badVersion
	}
	return nil
}

// loggedName returns the name for the log: as the box sent it, without the final dot.
func (q query) loggedName() string { return strings.TrimSuffix(q.name, ".") }

// typeName returns the type for the log.
func (q query) typeName() string {
	if q.name == "" {
		return ""
	}
	return mdns.Type(q.qtype).String()
}

// addrOf returns the address of an A or AAAA record, else the zero Addr.
func addrOf(rr mdns.RR) netip.Addr {
	switch rr := rr.(type) {
	case *mdns.A:
		a, _ := netip.AddrFromSlice(rr.A.To4())
		return a
	case *mdns.AAAA:
		a, _ := netip.AddrFromSlice(rr.AAAA.To16())
		return a
	}
	return netip.Addr{}
}

// headerSize is the size of a message header in bytes.
const headerSize = 12

// udpSize is the maximum message size over UDP in bytes, both ways.
const udpSize = outbound.UDPSize

// isMeta reports whether a type does not ask for records of that type: transfers, ANY, and the rest of the range that
// RFC 6895, section 3.1 reserves.
func isMeta(t uint16) bool {
	return t == mdns.TypeNone || t == mdns.TypeOPT || t >= 128 && t <= 255
}

func isAddress(t uint16) bool { return t == mdns.TypeA || t == mdns.TypeAAAA }

// parseName converts a name in presentation format. A backslash escapes a byte that is not allowed in a host name, so
// such a name is an error.
func parseName(presentation string) (name.Name, error) {
	if strings.ContainsRune(presentation, '\\') {
		return name.Name{}, errors.New("not a host name")
	}
	return name.Parse(presentation)
}
