package dns

import (
	"context"
	"net/netip"
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
