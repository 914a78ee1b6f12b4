package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

// maxPacked is how many records a packed answer may have. The work for one query is bounded by it.
const maxPacked = 64

// packed is a cached answer as a message without OPT record, for a question in lower case. It is made by the code that
// answers all other queries, so that its bytes are the same. It is never changed.
type packed struct {
	message []byte
	size    int          // of the message, as the DNS library estimates it when it truncates
	ttls    []int        // where in the message the TTLs of the chain and the records are
	soa     int          // where that of the SOA record is; 0: there is none
	addrs   []netip.Addr // of the records, if they are addresses
	spelled bool         // names in it may share suffixes with the question, and so its spelling
}

// unpackable is the answer that must be made record by record.
var unpackable = &packed{}

// pack returns the packed form of an answer, making it on first use, or nil if it has none.
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

// newPacked returns nil for answers that do not end the resolution, and those too large or odd for this.
func newPacked(k cacheKey, a *answer) *packed {
	if a.err != nil || a.open || len(a.chain)+len(a.records) > maxPacked || a.loops(k.name) {
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
	p := &packed{message: wire, size: max(m.Len(), len(wire)), spelled: len(a.chain) > 0 || a.soa != nil || !isAddress(k.qtype)}
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

// loops reports whether the chain comes back to a name, or is too long to tell.
func (a *answer) loops(n name.Name) bool {
	for i, target := range a.targets {
		if target == n || slices.Contains(a.targets[:i], target) {
			return true
		}
	}
	return len(a.targets) >= maxChain
}

// findTTLs walks over the records.
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

// age counts down the TTLs of a copy of the message, and returns the smallest. life is that of the whole answer.
func (p *packed) age(message []byte, age, life time.Duration) time.Duration {
	least := maxTTL
	for _, at := range p.ttls {
		left := left(time.Duration(binary.BigEndian.Uint32(message[at:]))*time.Second, age)
		binary.BigEndian.PutUint32(message[at:], uint32(left/time.Second))
		least = min(least, left)
	}
	if p.soa > 0 {
		binary.BigEndian.PutUint32(message[p.soa:], uint32(left(life, age)/time.Second))
	}
	return least
}
