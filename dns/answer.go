package dns

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
	// maxNegativeTTL bounds how long a negative answer is cached (RFC 2308, section 5).
	maxNegativeTTL = 15 * time.Minute
	// maxChain bounds the CNAME records followed for one query, over all upstream answers.
	maxChain = 16
)

// errChain is returned for a CNAME chain that loops, is too long, or leads to something other than a host name.
var errChain = errors.New("the CNAME chain loops, is too long, or does not lead to a host name")

// answer is the content of one upstream answer about one name and type. All boxes share it, so it is immutable except
// for packed.
type answer struct {
	rcode      int           // NOERROR or NXDOMAIN
	chain      []*mdns.CNAME // from the name asked on, in order
	targets    []name.Name   // the target of each record in chain
	records    []mdns.RR     // of the requested type, owned by the end of the chain
	soa        *mdns.SOA     // of a negative answer; may be nil
	incomplete bool          // the answer lacks the end of the chain, which needs another question
	stored     time.Time
	life       time.Duration // how long after stored it may be used; 0: not cached
	err        error         // the lookup failed; only stored and life are set in addition
	overLimit  *usage        // not looked up, because this box has too many lookups in flight

	packed atomic.Pointer[packed] // set on first use
}

// digest takes from an upstream message only the records that answer name and qtype: other owners, other types and the
// additional section are ignored.
func digest(m *mdns.Msg, name name.Name, qtype uint16, now time.Time) (*answer, error) {
	a := &answer{rcode: m.Rcode, stored: now}
	end := name
	for {
		owner := end.String() + "."
		a.records = recordsOf(m.Answer, owner, qtype)
		if len(a.records) > 0 {
			break
		}
		alias := cnameOf(m.Answer, owner)
		if alias == nil {
			break
		}
		target, err := parseName(alias.Target)
		if err != nil || len(a.chain) == maxChain {
			return nil, fmt.Errorf("%w: %s", errChain, name)
		}
		a.chain, a.targets = append(a.chain, alias), append(a.targets, target)
		end = target
	}
	if len(a.records) == 0 {
		a.soa = soaOf(m.Ns, end.String()+".")
		a.incomplete = len(a.chain) > 0 && a.rcode == mdns.RcodeSuccess && a.soa == nil
	} else {
		a.rcode = mdns.RcodeSuccess
	}
	a.life = a.lifetime()
	return a, nil
}

func recordsOf(rrs []mdns.RR, owner string, qtype uint16) []mdns.RR {
	var out []mdns.RR
	for _, rr := range rrs {
		h := rr.Header()
		if h.Rrtype != qtype || h.Class != mdns.ClassINET || mdns.CanonicalName(h.Name) != owner {
			continue
		}
		if isAddress(qtype) && !addrOf(rr).IsValid() {
			continue
		}
		if rr = withoutDetours(rr); rr != nil {
			out = append(out, rr)
		}
	}
	return out
}

func cnameOf(rrs []mdns.RR, owner string) *mdns.CNAME {
	for _, rr := range rrs {
		if c, ok := rr.(*mdns.CNAME); ok && c.Hdr.Class == mdns.ClassINET && mdns.CanonicalName(c.Hdr.Name) == owner {
			return c
		}
	}
	return nil
}

// soaOf returns the SOA record that makes an answer about owner negative. Its zone must contain owner.
func soaOf(rrs []mdns.RR, owner string) *mdns.SOA {
	for _, rr := range rrs {
		if soa, ok := rr.(*mdns.SOA); ok && soa.Hdr.Class == mdns.ClassINET && mdns.IsSubDomain(soa.Hdr.Name, owner) {
			return soa
		}
	}
	return nil
}

// lifetime returns the smallest TTL of the answer. A negative answer without an SOA record is not cached (RFC 2308,
// section 5).
func (a *answer) lifetime() time.Duration {
	life := maxTTL
	for _, c := range a.chain {
		life = min(life, ttlOf(c.Hdr.Ttl))
	}
	for _, rr := range a.records {
		life = min(life, ttlOf(rr.Header().Ttl))
	}
	if len(a.records) > 0 || a.incomplete {
		return life
	}
	if a.soa == nil {
		return 0
	}
	return min(life, maxNegativeTTL, ttlOf(min(a.soa.Hdr.Ttl, a.soa.Minttl)))
}

// ttlOf reads a TTL field; the top bit set means 0 (RFC 2181, section 8).
func ttlOf(field uint32) time.Duration {
	if field > 1<<31-1 {
		field = 0
	}
	return min(max(time.Duration(field)*time.Second, minTTL), maxTTL)
}

// aged returns a copy of rr with its remaining TTL.
func aged(rr mdns.RR, age time.Duration) mdns.RR {
	out := mdns.Copy(rr)
	out.Header().Ttl = uint32(remainingTTL(ttlOf(rr.Header().Ttl), age) / time.Second)
	return out
}

// remainingTTL returns the rest of a TTL after age, at least minTTL.
func remainingTTL(ttl, age time.Duration) time.Duration {
	return max(ttl-age.Truncate(time.Second), minTTL)
}
