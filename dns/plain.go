package dns

import (
	"encoding/binary"
	"hash/maphash"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Bits of the second half of a header's flags, and of the first.
const (
	flagResponse  = 0x80 // in the third byte of a message
	flagRecursion = 0x01
	flagAvailable = 0x80 // in the fourth
	flagAuthentic = 0x20
	flagUnchecked = 0x10
)

const (
	maxName   = 253 // in presentation format, without the final dot
	optSize   = 11  // of an OPT record without options
	optDo     = 0x8000
	fixedPart = 10 // of a resource record: type, class, TTL and the length of its data
)

// plainQuery is a query as nearly all stub resolvers send it: one question of class IN for a host name, and at most an
// OPT record without options. Only such a query is answered without the DNS library.
type plainQuery struct {
	name  []byte // in lower case, without the final dot
	asked []byte // the question as the client spelled it
	mixed bool   // not all of it in lower case
	qtype uint16
	kind  string // qtype for the log
	edns  bool
	do    bool
	limit int // of the answer over UDP
}

// parsePlain parses a plain query; the name is written to buf, which holds maxName bytes. It reports false for every
// message that is anything else, malformed or not.
func parsePlain(wire, buf []byte) (q plainQuery, ok bool) {
	if len(wire) < headerSize || wire[2]&^flagRecursion != 0 || wire[3]&^(flagAuthentic|flagUnchecked) != 0 {
		return q, false
	}
	extra := binary.BigEndian.Uint64(wire[4:]) - 1<<48 // one question, no answer, no authority
	end, ok := q.readName(wire, buf)
	if !ok || extra > 1 || end+4 > len(wire) || binary.BigEndian.Uint16(wire[end+2:]) != mdns.ClassINET {
		return q, false
	}
	q.qtype = binary.BigEndian.Uint16(wire[end:])
	q.asked = wire[headerSize : end+4]
	if q.qtype < uint16(len(kinds)) {
		q.kind = kinds[q.qtype]
	}
	return q, q.readEDNS(wire[end+4:], extra == 1) && q.kind != ""
}

// kinds are the names of the types below the range of those that are not for records. All that hosts ask for is there.
var kinds = func() (names [128]string) {
	for t := range uint16(len(names)) {
		if !isMeta(t) {
			names[t] = mdns.TypeToString[t]
		}
	}
	return names
}()

// readName reads labels of letters, digits, hyphens and underscores, and returns where they end.
func (q *plainQuery) readName(wire, buf []byte) (end int, ok bool) {
	q.name = buf[:0]
	for at := headerSize; at < len(wire); {
		n := int(wire[at])
		at++
		if n == 0 {
			return at, len(q.name) > 0
		}
		if n > 63 || at+n > len(wire) || len(q.name)+1+n > maxName {
			return at, false
		}
		if len(q.name) > 0 {
			q.name = append(q.name, '.')
		}
		for _, c := range wire[at : at+n] {
			low := hostByte[c]
			if low == 0 {
				return at, false
			}
			q.mixed = q.mixed || low != c
			q.name = append(q.name, low)
		}
		at += n
	}
	return len(wire), false
}

// hostByte maps the bytes of host names to lower case, and all others to 0.
var hostByte = func() (low [256]byte) {
	for c := range len(low) {
		switch c := byte(c); {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			low[c] = c
		case 'A' <= c && c <= 'Z':
			low[c] = c - 'A' + 'a'
		}
	}
	return low
}()

// readEDNS reads what follows the question: nothing, or an OPT record of version 0 without options.
func (q *plainQuery) readEDNS(rest []byte, announced bool) bool {
	q.limit = mdns.MinMsgSize
	if !announced {
		return len(rest) == 0
	}
	if len(rest) != optSize || rest[0] != 0 || binary.BigEndian.Uint16(rest[1:]) != mdns.TypeOPT {
		return false
	}
	q.edns = true
	q.limit = min(max(int(binary.BigEndian.Uint16(rest[3:])), mdns.MinMsgSize), udpSize)
	ttl := binary.BigEndian.Uint32(rest[5:]) // extended code, version, flags
	q.do = ttl == optDo
	return ttl&^optDo == 0 && rest[9] == 0 && rest[10] == 0
}

// maxSize is how long the answer may be.
func (q *plainQuery) maxSize(transport policy.Protocol) int {
	if transport == policy.TCP {
		return mdns.MaxMsgSize
	}
	return q.limit
}

// names keeps the names that were asked for lately, so that no memory is needed to ask again. The zero value is ready.
// Not safe for concurrent use.
type names struct {
	known [4096]name.Name
}

var nameSeed = maphash.MakeSeed()

// parse is parseName for a name in lower case.
func (n *names) parse(text []byte) (name.Name, error) {
	slot := &n.known[maphash.Bytes(nameSeed, text)%uint64(len(n.known))]
	if slot.String() == string(text) {
		return *slot, nil
	}
	name, err := parseName(string(text))
	if name.String() == string(text) {
		*slot = name
	}
	return name, err
}
