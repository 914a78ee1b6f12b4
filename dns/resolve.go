package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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
	inside := s.cluster.has(n)
	seen := map[name.Name]bool{n: true}
	for range maxQuestions {
		if n.IsService() { // not for upstream servers, also as the target of an alias
			return resolution{}, fmt.Errorf("%w: %s", ErrNoAddress, n)
		}
		if s.cluster.has(n) && !(inside && opensName(box, n)) { // likewise, for the servers of the cluster
			return resolution{}, fmt.Errorf("%w: %s", ErrNoAddress, n)
		}
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

// opensName reports whether the box's policy lets a name in the domain of the cluster be asked for at the cluster's servers.
func opensName(box *policy.Box, n name.Name) bool {
	pol := box.Policy.Load()
	return pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n}).Allowed() || pol.ResolvesOthers(n)
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

// secondFamilyDelay is how long Lookup waits for the second family after the first has answered (RFC 8305, section 3).
const secondFamilyDelay = 100 * time.Millisecond

// ErrNoAddress is returned by Lookup for a name that does not exist or has no address. Its method NotFound lets
// packages that do not import this one distinguish it from a failure.
var ErrNoAddress error = noAddress{}

type noAddress struct{}

// Error returns the message.
func (noAddress) Error() string { return "the name has no address" }

// NotFound reports true: the lookup succeeded, and the name has no address.
func (noAddress) NotFound() bool { return true }

// Lookup returns the addresses of n, IPv4 first, from the same cache and upstreams as the boxes' own queries. It
// queries both families concurrently and follows CNAMEs. The addresses are unfiltered: the caller must check each
// against the policy before dialling it, and must have checked the name. Still, a name or chain that the box's policy
// denies by name fails with a *policy.DeniedError. Lookup returns when ctx ends.
func (s *Server) Lookup(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	return s.lookup(ctx, box, n, waitBoth)
}

// LookupBoth is like Lookup, but waits for both families and fails if either lookup does. On partial failure it returns
// the addresses found, with the error. Use it where every address of a name is needed.
func (s *Server) LookupBoth(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	var a4, a6 family
	addrs, err := s.lookup(ctx, box, n, func(v4, v6 <-chan family) (family, family) {
		a4, a6 = <-v4, <-v6
		return a4, a6
	})
	if failed := errors.Join(a4.err, a6.err); failed != nil {
		return addrs, fmt.Errorf("resolve %s: %w", n, failed)
	}
	return addrs, err
}

// Preview returns the addresses, unfiltered, from which a query of the box for n would be answered under a policy. It grants
// none of them. looked is false if the gateway would not look the name up: the policy denies it, it is a public URL, or an
// upstream proxy resolves it.
func (s *Server) Preview(ctx context.Context, box *policy.Box, pol *policy.Compiled, n name.Name) (addrs []netip.Addr, looked bool, err error) {
	d := pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n})
	switch {
	case n.IsZero(), !d.Allowed() && !resolvesAnyway(pol, n, d, mdns.TypeA), d.Allowed() && (s.isURL(n) || pol.ResolvedThere(n)):
		return nil, false, nil
	}
	addrs, err = s.Lookup(ctx, box, n)
	return addrs, true, err
}

func (s *Server) lookup(ctx context.Context, box *policy.Box, n name.Name, wait func(v4, v6 <-chan family) (family, family)) ([]netip.Addr, error) {
	if box == nil || n.IsZero() {
		r := policy.Request{Stage: policy.StageDNS, Name: n}
		reason := name.ReasonUnknownBox
		if box != nil {
			r.Box, reason = box.ID, name.ReasonNoName
		}
		return nil, policy.Decision{Reason: reason}.Err(r)
	}
	if err := denies(box, n); err != nil {
		return nil, err
	}
	v4, v6 := s.lookupFamily(ctx, box, n, mdns.TypeA), s.lookupFamily(ctx, box, n, mdns.TypeAAAA)
	a4, a6 := wait(v4, v6)
	addrs := append(a4.addrs, a6.addrs...)
	switch {
	case len(addrs) > 0:
		return addrs, nil
	case a4.err != nil || a6.err != nil:
		return nil, fmt.Errorf("resolve %s: %w", n, errors.Join(a4.err, a6.err))
	}
	return nil, fmt.Errorf("resolve %s: %w", n, ErrNoAddress)
}

// family is the result of Lookup for one address family.
type family struct {
	addrs []netip.Addr
	err   error
}

func (s *Server) lookupFamily(ctx context.Context, box *policy.Box, n name.Name, qtype uint16) <-chan family {
	out := make(chan family, 1)
	go func() {
		var f family
		defer func() {
			if p := recover(); p != nil {
				f = family{err: fmt.Errorf("panic in a DNS lookup: %v", p)}
			}
			out <- f
		}()
		var res resolution
		res, f.err = s.resolve(ctx, box, n, qtype)
		for _, rr := range res.records {
			f.addrs = append(f.addrs, addrOf(rr))
		}
	}()
	return out
}

// waitBoth waits for both families, or for secondFamilyDelay after the first that has addresses.
func waitBoth(v4, v6 <-chan family) (a4, a6 family) {
	var late <-chan time.Time
	for v4 != nil || v6 != nil {
		var got family
		select {
		case a4 = <-v4:
			got, v4 = a4, nil
		case a6 = <-v6:
			got, v6 = a6, nil
		case <-late:
			return a4, a6
		}
		if len(got.addrs) > 0 && late == nil {
			late = time.After(secondFamilyDelay)
		}
	}
	return a4, a6
}

// LookupText returns the TXT records of n, following CNAMEs. The strings of each record are joined. A name that does
// not exist has no records, which is not an error. This is the gateway's own lookup: it applies no policy and does not
// use the boxes' cache. The caller bounds the number of concurrent lookups. A lookup is bounded by the same timeout as
// a box's.
func (s *Server) LookupText(ctx context.Context, n name.Name) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	seen := map[name.Name]bool{n: true}
	for range maxQuestions {
		if s.cluster.has(n) {
			return nil, fmt.Errorf("resolve %s: %w", n, ErrNoAddress)
		}
		m, err := s.cache.upstream.exchange(ctx, n.String()+".", mdns.TypeTXT)
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", n, err)
		}
		a, err := digest(m, n, mdns.TypeTXT, time.Now())
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", n, err)
		}
		for _, target := range a.targets {
			if seen[target] || len(seen) > maxChain {
				return nil, fmt.Errorf("%w: %s", errChain, n)
			}
			seen[target] = true
			n = target
		}
		if a.incomplete {
			continue
		}
		var texts []string
		for _, rr := range a.records {
			if txt, ok := rr.(*mdns.TXT); ok {
				texts = append(texts, strings.Join(txt.Txt, ""))
			}
		}
		return texts, nil
	}
	return nil, fmt.Errorf("%w: %s", errChain, n)
}
