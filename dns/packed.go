package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

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
