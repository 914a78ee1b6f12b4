package dns

import (
	"context"
	"fmt"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

// maxQuestions bounds the upstream questions for one query: the name, and the ends of chains that the answers did not
// include.
const maxQuestions = 8

// resolution is the complete result for a name and type, with TTLs counted down: a chain, then records or a negative
// answer.
type resolution struct {
	rcode   int
	chain   []mdns.RR
	records []mdns.RR
	soa     mdns.RR // nil unless negative
}

// resolve finds the records of n, following CNAMEs, from the cache or upstream. It fails with a *policy.DeniedError if
// the box's policy denies a name in the chain by name.
func (s *Server) resolve(ctx context.Context, box *policy.Box, n name.Name, qtype uint16) (resolution, error) {
	var res resolution
	use := s.usages.usageOf(box)
	seen := map[name.Name]bool{n: true}
	for range maxQuestions {
		a, err := s.cache.answerFor(ctx, use, n, qtype)
		if err != nil {
			return resolution{}, err
		}
		for _, target := range a.targets {
			if err := denies(box, target); err != nil {
				return resolution{}, err
			}
			if seen[target] || len(seen) > maxChain {
				return resolution{}, fmt.Errorf("%w: %s", errChain, n)
			}
			seen[target] = true
			n = target
		}
		res.add(a, time.Since(a.stored))
		if !a.incomplete {
			return res, nil
		}
	}
	return resolution{}, fmt.Errorf("%w: %s", errChain, n)
}

// denies returns a denial if the policy denies n by name. A name that is merely on no allowed list is no denial: the
// owner of the allowed first name decides where its chain leads.
func denies(box *policy.Box, n name.Name) error { return deniesName(box.Policy.Load(), box, n) }

func deniesName(pol *policy.Compiled, box *policy.Box, n name.Name) error {
	r := policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n}
	if d := pol.Decide(r); !d.Allowed() && d.Reason != name.ReasonNotAllowed {
		return d.Err(r)
	}
	return nil
}

func (r *resolution) add(a *answer, age time.Duration) {
	for _, c := range a.chain {
		r.chain = append(r.chain, aged(c, age))
	}
	for _, rr := range a.records {
		r.records = append(r.records, aged(rr, age))
	}
	r.rcode = a.rcode
	if a.soa != nil {
		r.soa = aged(a.soa, age)
		r.soa.Header().Ttl = uint32(remainingTTL(a.life, age) / time.Second)
	}
}

// ttl is how long the client may use the resolution: its smallest TTL.
func (r *resolution) ttl() time.Duration {
	life := maxTTL
	for _, rr := range r.chain {
		life = min(life, ttlOf(rr.Header().Ttl))
	}
	for _, rr := range r.records {
		life = min(life, ttlOf(rr.Header().Ttl))
	}
	return life
}

// reply converts the resolution to an answer to q. Records of the queried name get the client's spelling, because some
// clients randomize its case and compare.
func (r *resolution) reply(q query) reply {
	out := reply{rcode: r.rcode, soa: r.soa, answer: append(r.chain[:len(r.chain):len(r.chain)], r.records...)}
	asked := mdns.CanonicalName(q.name)
	for _, rr := range out.answer {
		if h := rr.Header(); mdns.CanonicalName(h.Name) == asked {
			h.Name = q.name
		}
	}
	return out
}
