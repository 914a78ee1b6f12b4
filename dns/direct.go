package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// scratch is the working memory of a goroutine that answers queries directly, one after the other, without allocating.
type scratch struct {
	name      [maxName]byte
	nameCache nameCache
	missing   cacheKey // the upstream question of the query that was declined last; zero: declined for another reason
}

// directAnswer is an answer that needs no waiting: from the cache, or the policy's refusal.
type directAnswer struct {
	plainQuery
	box     *policy.Box
	policy  *policy.Compiled
	host    name.Name
	verdict policy.Decision // about the name, or about the first address
	cached  *answer         // nil: denied
	packed  *packed         // of cached
}

// answerDirectly is answer for the most common queries, if their answer needs no waiting. It appends the answer to dst.
// For every other query it reports false without side effects, and the caller calls answer, which gives the same
// answer, grants and event for all queries.
func (s *Server) answerDirectly(ctx context.Context, v visit, transport policy.Protocol, wire []byte, d *scratch, dst []byte) (out []byte, ok bool) {
	ev := openEvent(v, transport)
	defer func() {
		if p := recover(); p != nil {
			out, ok = s.answerPanic(&ev, wire), true
		}
		if ok {
			s.closeEvent(v, &ev)
		}
	}()
	a, ok := s.findDirect(v, transport, wire, d)
	if !ok {
		return nil, false
	}
	ev.Name, ev.Method = a.host.String(), a.typeName
	queryRead(ctx)
	setDecision(&ev, a.verdict)
	if a.cached == nil {
		rcode, sink := deniedRcode(a.policy.AnswerDenied(a.host, a.box.Search)), s.sinkOf(a.qtype)
		if rcode != mdns.RcodeSuccess {
			sink = netip.Addr{}
		}
		if sink.IsValid() {
			v.usage.sinkTracker.recordName(a.host, v.now)
			ev.Action = audit.ActionSink
		}
		setRCode(&ev, rcode)
		return s.appendDenied(dst, wire, &a, rcode, sink), true
	}
	ev.Action = audit.ActionForward
	setRCode(&ev, a.cached.rcode)
	if len(a.packed.addrs) > 0 {
		ev.Addr = a.packed.addrs[0]
	}
	out = append(dst, a.packed.message...)
	life := a.packed.age(out[len(dst):], v.now.Sub(a.cached.stored), a.cached.life)
	s.grant(a.box, a.host, a.packed.addrs, life)
	return a.finish(out, len(dst), wire), true
}

// findDirect decides whether a query can be answered directly. It has no side effects but d.
func (s *Server) findDirect(v visit, transport policy.Protocol, wire []byte, d *scratch) (a directAnswer, ok bool) {
	d.missing = cacheKey{}
	if v.box == nil || !v.admitted {
		return a, false
	}
	if a.plainQuery, ok = parsePlain(wire, d.name[:]); !ok {
		return a, false
	}
	var err error
	if a.host, err = d.nameCache.parse(a.name); err != nil {
		return a, false
	}
	a.box, a.policy = v.box, v.box.Policy.Load()
	if s.isInside(a.box, a.host) {
		return a, false
	}
	a.verdict = a.policy.Decide(policy.Request{Stage: policy.StageDNS, Box: a.box.ID, Name: a.host})
	if !a.verdict.Allowed() && !resolvesAnyway(a.policy, a.host, a.verdict, a.qtype) {
		return a, a.sinkSize() < a.maxSize(transport)
	}
	if s.isURL(a.host) || a.policy.ResolvedThere(a.host) {
		return a, false
	}
	found := s.findCached(&a, v.now)
	if a.cached == nil {
		d.missing = cacheKey{a.host, a.qtype}
	}
	// An answer close to the limit is left to the library, which decides what to truncate.
	return a, found && a.packed.size+optSize < a.maxSize(transport) && a.box.Policy.Load() == a.policy
}

// findCached finds the answer if it is in the cache, complete, and the policy allows all of it.
func (s *Server) findCached(a *directAnswer, now time.Time) bool {
	k := cacheKey{a.host, a.qtype}
	if a.cached = s.cache.cachedAt(k, now); a.cached == nil {
		return false
	}
	if a.packed = a.cached.pack(k); a.packed == nil || a.mixedCase && a.packed.sharesNames {
		return false
	}
	for _, target := range a.cached.targets {
		if deniesName(a.policy, a.box, target) != nil {
			return false
		}
	}
	for i, addr := range a.packed.addrs {
		d, ok := judgeAddr(a.policy, a.box, a.host, addr)
		if !ok {
			return false
		}
		if i == 0 {
			a.verdict = d
		}
	}
	return a.verdict.Allowed()
}

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
	known *[4096]name.Name // nil until the first name: most sockets never receive a query
}

var nameSeed = maphash.MakeSeed()

// parse is parseName for a name in lower case.
func (n *nameCache) parse(text []byte) (name.Name, error) {
	if n.known == nil {
		n.known = new([4096]name.Name)
	}
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

// maxPacked bounds the records of a packed answer, and so the work for one query.
const maxPacked = 64

// packed is a cached answer as a message without OPT record, for a question in lower case. The code for all other
// queries builds it, so its bytes are the same. It is immutable.
type packed struct {
	message     []byte
	size        int          // of the message, as the DNS library estimates it for truncation
	ttls        []int        // offsets in message of the TTLs of the chain and the records
	soa         int          // offset of the SOA record's TTL; 0: no SOA record
	addrs       []netip.Addr // of the address records
	sharesNames bool         // names in it may share suffixes with the question, and so its letter case
}

// unpackable marks an answer that must be built record by record.
var unpackable = &packed{}

// pack returns the packed form of an answer, built on first use, or nil if the answer is unpackable.
func (a *answer) pack(k cacheKey) *packed {
	p := a.packed.Load()
	if p == nil {
		if p = newPacked(k, a); p == nil {
			p = unpackable
		}
		a.packed.Store(p)
	}
	if p == unpackable {
		return nil
	}
	return p
}

// newPacked returns nil for answers that do not end the resolution, and for those too large or unusual.
func newPacked(k cacheKey, a *answer) *packed {
	if a.err != nil || a.incomplete || len(a.chain)+len(a.records) > maxPacked || a.loops(k.name) {
		return nil
	}
	var res resolution
	res.add(a, 0)
	q := query{name: k.name.String() + ".", qtype: k.qtype}
	q.msg.SetQuestion(q.name, q.qtype)
	m := q.message(res.reply(q))
	m.Compress = true
	wire, err := m.Pack()
	if err != nil {
		return nil
	}
	p := &packed{message: wire, size: max(m.Len(), len(wire)), sharesNames: len(a.chain) > 0 || a.soa != nil || !isAddress(k.qtype)}
	if !p.findTTLs(len(m.Answer), len(m.Ns)) {
		return nil
	}
	for _, rr := range a.records {
		if isAddress(k.qtype) {
			p.addrs = append(p.addrs, addrOf(rr))
		}
	}
	return p
}

// loops reports whether the chain returns to an earlier name or reaches maxChain.
func (a *answer) loops(n name.Name) bool {
	for i, target := range a.targets {
		if target == n || slices.Contains(a.targets[:i], target) {
			return true
		}
	}
	return len(a.targets) >= maxChain
}

// findTTLs collects the offsets of the TTLs, and reports whether the message is well-formed.
func (p *packed) findTTLs(answers, authority int) bool {
	_, at, err := mdns.UnpackDomainName(p.message, headerSize)
	at += 4
	for i := 0; err == nil && i < answers+authority; i++ {
		if _, at, err = mdns.UnpackDomainName(p.message, at); err != nil || at+fixedPart > len(p.message) {
			return false
		}
		if i < answers {
			p.ttls = append(p.ttls, at+4)
		} else {
			p.soa = at + 4
		}
		at += fixedPart + int(binary.BigEndian.Uint16(p.message[at+8:]))
	}
	return err == nil && at == len(p.message)
}

// age counts down the TTLs of a copy of the message, and returns the smallest. life is the lifetime of the whole
// answer.
func (p *packed) age(message []byte, age, life time.Duration) time.Duration {
	least := maxTTL
	for _, at := range p.ttls {
		left := remainingTTL(time.Duration(binary.BigEndian.Uint32(message[at:]))*time.Second, age)
		binary.BigEndian.PutUint32(message[at:], uint32(left/time.Second))
		least = min(least, left)
	}
	if p.soa > 0 {
		binary.BigEndian.PutUint32(message[p.soa:], uint32(remainingTTL(life, age)/time.Second))
	}
	return least
}

// maxPlain is the maximum number of records in a plain answer.
const maxPlain = 16

// plainAnswer is the usual form of an upstream answer for A and AAAA: the addresses of the name asked for and at most
// an OPT record. Only such an answer is parsed without the DNS library.
type plainAnswer struct {
	addrs [maxPlain]netip.Addr
	ttls  [maxPlain]uint32
	count int
}

// parsePlainAnswer parses an answer to a question of class IN that occupies m[headerSize:end]. It reports false for
// every other message, malformed or not.
func parsePlainAnswer(m []byte, end int, qtype uint16) (a plainAnswer, ok bool) {
	// NOERROR, one question, at least one answer, no authority, at most one additional record.
	records, extra := binary.BigEndian.Uint16(m[6:]), binary.BigEndian.Uint16(m[10:])
	if m[3]&0xf != mdns.RcodeSuccess || binary.BigEndian.Uint16(m[4:]) != 1 || records == 0 || records > maxPlain || binary.BigEndian.Uint16(m[8:]) != 0 || extra > 1 {
		return a, false
	}
	name, rest := m[headerSize:end-4], m[end:]
	for range records {
		if rest, ok = a.add(rest, name, qtype); !ok {
			return a, false
		}
	}
	if extra == 1 {
		rest, ok = skipOPT(rest)
	}
	return a, ok && len(rest) == 0
}

// add parses a record whose owner is the name in the question, compressed or not.
func (a *plainAnswer) add(m, name []byte, qtype uint16) (rest []byte, ok bool) {
	size := 4
	if qtype == mdns.TypeAAAA {
		size = 16
	}
	if rest, ok = bytes.CutPrefix(m, compressed); !ok {
		rest, ok = bytes.CutPrefix(m, name)
	}
	if !ok || len(rest) < fixedPart+size || binary.BigEndian.Uint16(rest) != qtype ||
		binary.BigEndian.Uint16(rest[2:]) != mdns.ClassINET || int(binary.BigEndian.Uint16(rest[8:])) != size {
		return nil, false
	}
	addr, _ := netip.AddrFromSlice(rest[fixedPart : fixedPart+size])
	a.addrs[a.count], a.ttls[a.count] = addr, binary.BigEndian.Uint32(rest[4:])
	a.count++
	return rest[fixedPart+size:], true
}

// compressed is a pointer to the name in the question.
var compressed = []byte{questionName >> 8, questionName & 0xff}

// skipOPT skips an OPT record of version 0 without options, which does not change the response code.
func skipOPT(m []byte) (rest []byte, ok bool) {
	if len(m) < optSize || m[0] != 0 || binary.BigEndian.Uint16(m[1:]) != mdns.TypeOPT || m[5] != 0 || m[6] != 0 || m[9] != 0 || m[10] != 0 {
		return nil, false
	}
	return m[optSize:], true
}

// answer returns the same as digest would, already packed.
func (a *plainAnswer) answer(k cacheKey, now time.Time) *answer {
	out := &answer{rcode: mdns.RcodeSuccess, records: make([]mdns.RR, a.count), stored: now}
	owner := k.name.String() + "."
	for i := range a.count {
		h := mdns.RR_Header{Name: owner, Rrtype: k.qtype, Class: mdns.ClassINET, Ttl: a.ttls[i], Rdlength: uint16(a.addrs[i].BitLen() / 8)}
		if k.qtype == mdns.TypeA {
			out.records[i] = &mdns.A{Hdr: h, A: net.IP(a.addrs[i].AsSlice())}
		} else {
			out.records[i] = &mdns.AAAA{Hdr: h, AAAA: net.IP(a.addrs[i].AsSlice())}
		}
	}
	out.life = out.lifetime()
	out.packed.Store(a.pack(k))
	return out
}

// pack is newPacked for the answer.
func (a *plainAnswer) pack(k cacheKey) *packed {
	name := k.name.String()
	p := &packed{ttls: make([]int, a.count), addrs: make([]netip.Addr, a.count)}
	m := make([]byte, 0, headerSize+len(name)+2+4+a.count*addressSize)
	m = append(m, 0, 0, flagResponse|flagRecursion, flagAvailable, 0, 1, 0, byte(a.count), 0, 0, 0, 0)
	m = appendName(m, name)
	m = binary.BigEndian.AppendUint16(m, k.qtype)
	m = binary.BigEndian.AppendUint16(m, mdns.ClassINET)
	for i := range a.count {
		p.ttls[i], p.addrs[i] = len(m)+6, a.addrs[i]
		m = appendAddress(m, a.addrs[i], uint32(remainingTTL(ttlOf(a.ttls[i]), 0)/time.Second))
	}
	p.message, p.size = m, len(m)
	return p
}

// appendName appends a host name in wire format.
func appendName(m []byte, name string) []byte {
	at := len(m)
	m = append(append(append(m, 0), name...), 0) // the first byte, and each dot, becomes the length of what follows
	root := len(m) - 1
	for i := at + 1; i < root; i++ {
		if m[i] == '.' {
			m[at] = byte(i - at - 1)
			at = i
		}
	}
	m[at] = byte(root - 1 - at)
	return m
}

// digestMessage is digest for a message in wire format whose header and question have been checked. The error is an
// rcodeError if the server failed, and errUseStream if the message is malformed. A panic becomes an error, because no
// caller recovers.
func digestMessage(message []byte, k cacheKey, now time.Time) (a *answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			a, err = nil, fmt.Errorf("panic over an answer: %v", p)
		}
	}()
	if isAddress(k.qtype) {
		if plain, ok := parsePlainAnswer(message, headerSize+len(k.name.String())+2+4, k.qtype); ok {
			return plain.answer(k, now), nil
		}
	}
	m := new(mdns.Msg)
	if err := m.Unpack(message); err != nil {
		return nil, fmt.Errorf("%w: %w", errUseStream, err)
	}
	if m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError { // the OPT record extends the code
		return nil, rcodeError(m.Rcode)
	}
	return digest(m, k.name, k.qtype, now)
}
