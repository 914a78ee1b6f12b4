package dns

import (
	"encoding/binary"
	"hash/maphash"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Flags in the third and fourth byte of a message header.
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
	fixedPart = 10 // of a resource record: type, class, TTL and data length
)

// plainQuery is the query that nearly all stub resolvers send: one question of class IN for a host name, and at most an
// OPT record without options. Only such a query is answered without the DNS library.
type plainQuery struct {
	name      []byte // in lower case, without the final dot
	question  []byte // the question as the client spelled it
	mixedCase bool   // the client's spelling has upper-case letters
	qtype     uint16
	typeName  string // qtype for the log
	edns      bool
	do        bool
	limit     int // bytes of the answer over UDP
}

// parsePlain parses a plain query and writes the name to buf, which has maxName bytes. It reports false for every other
// message, malformed or not.
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
	q.question = wire[headerSize : end+4]
	if q.qtype < uint16(len(typeNames)) {
		q.typeName = typeNames[q.qtype]
	}
	return q, q.readEDNS(wire[end+4:], extra == 1) && q.typeName != ""
}

// typeNames maps record types to names; types outside this range and types that are not record types (isMeta) have no
// name. It includes all types that hosts commonly ask for.
var typeNames = func() (names [128]string) {
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
			q.mixedCase = q.mixedCase || low != c
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

// readEDNS parses the rest of the message after the question: empty, or an OPT record of version 0 without options.
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

// maxSize is the maximum size of the answer.
func (q *plainQuery) maxSize(transport policy.Protocol) int {
	if transport == policy.TCP {
		return mdns.MaxMsgSize
	}
	return q.limit
}

// nameCache caches recently asked names, so that parsing one again does not allocate. The zero value is ready to use. Not
// safe for concurrent use.
type nameCache struct {
	known [4096]name.Name
}

var nameSeed = maphash.MakeSeed()

// parse is parseName for a name in lower case.
func (n *nameCache) parse(text []byte) (name.Name, error) {
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
