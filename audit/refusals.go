package audit

import (
	"net/netip"
	"slices"

	"golang.org/x/time/rate"

	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	// refusalKinds is how many different refusals of a box are logged separately per second, and refusalBurst how many
	// in a burst. Each budget (see budgetOf) has its own limit.
	refusalKinds = 10
	refusalBurst = 200
)

// refusals are the refusals of one box in the current interval. The zero value is empty.
type refusals struct {
	limiters [budgets]*rate.Limiter // limits new kinds
	known    map[refusal]*repeats   // kinds already logged; at most refusalBurst + refusalKinds of each budget
	overflow map[class]*repeats     // kinds beyond the limit
}

// budget is a group of refusals that share a limit in the log. Refusals of one budget do not displace refusals of
// another: a box that looks up thousands of forbidden names cannot hide its attempts to connect.
type budget uint8

const (
	budgetKernel   budget = iota // packets other than TCP, refused by the kernel
	budgetTCP                    // TCP refused by the kernel
	budgetNames                  // DNS queries
	budgetProxy                  // connections and requests at the proxy
	budgetVisitors               // requests to public URLs
	budgetSelfTest
	budgets
)

func budgetOf(e *Event) budget {
	switch {
	case e.SelfTest:
		return budgetSelfTest
	case e.Stage == policy.StageKernel && e.Protocol == policy.TCP:
		return budgetTCP
	case e.Stage == policy.StageKernel:
		return budgetKernel
	case e.Stage == policy.StageDNS:
		return budgetNames
	case e.Stage == policy.StageURL:
		return budgetVisitors
	default:
		return budgetProxy
	}
}

// refusal is the key under which refusals of a box are coalesced.
type refusal struct {
	class
	protocol     policy.Protocol
	name         string
	addr, peer   netip.Addr
	port         uint16
	method, path string
	credential   Credential
	action       Action
	rule         string
	status       int
}

// class identifies refusals that are only counted.
type class struct {
	stage    policy.Stage
	reason   name.Reason
	selfTest bool
}

// repeats are pending refusals.
type repeats struct {
	latest  Event
	n       uint64
	in, out int64
}

func refusalOf(e *Event) refusal {
	return refusal{
		class: class{e.Stage, e.Reason, e.SelfTest}, protocol: e.Protocol, name: e.Name, addr: e.Addr, peer: e.Peer, port: e.Port, method: e.Method,
		path: e.Path, credential: e.Credential, action: e.Action, rule: e.Rule, status: e.Status,
	}
}

func (r *repeats) add(e *Event) {
	r.latest = *e
	r.latest.Headers = slices.Clone(e.Headers)
	r.n += max(e.Count, 1)
	r.in, r.out = r.in+e.BytesIn, r.out+e.BytesOut
}

// takeEvent returns one event for all pending refusals and resets r; ok is false without pending refusals.
func (r *repeats) takeEvent() (e Event, ok bool) {
	if r.n == 0 {
		return Event{}, false
	}
	e = r.latest
	if e.BytesIn, e.BytesOut = r.in, r.out; r.n > 1 {
		e.Count = r.n
	}
	*r = repeats{}
	return e, true
}

// admit reports whether to emit the refusal now. Otherwise the refusal is counted and emitted later.
func (r *refusals) admit(e *Event) bool {
	if r.known == nil {
		r.known, r.overflow = map[refusal]*repeats{}, map[class]*repeats{}
	}
	kind := refusalOf(e)
	if like := r.known[kind]; like != nil {
		like.add(e)
		return false
	}
	room := r.limiters[budgetOf(e)]
	if room == nil {
		room = rate.NewLimiter(refusalKinds, refusalBurst)
		r.limiters[budgetOf(e)] = room
	}
	if e.SelfTest || room.Allow() { // self-tests have a bounded number
		r.known[kind] = &repeats{}
		return true
	}
	rest := r.overflow[kind.class]
	if rest == nil {
		rest = &repeats{}
		r.overflow[kind.class] = rest
	}
	rest.add(e)
	return false
}

// takePending returns events for the pending refusals. Up to refusalKinds recurring kinds of each budget stay known; the
// others count as new again.
func (r *refusals) takePending() []Event {
	var events []Event
	kept := [budgets]int{}
	for kind, like := range r.known {
		e, ok := like.takeEvent()
		if !ok {
			delete(r.known, kind)
			continue
		}
		events = append(events, e)
		if of := budgetOf(&e); kept[of] < refusalKinds {
			kept[of]++
		} else {
			delete(r.known, kind)
		}
	}
	for _, rest := range r.overflow {
		if e, ok := rest.takeEvent(); ok {
			e.Name, e.Addr, e.Peer, e.Port = "", netip.Addr{}, netip.Addr{}, 0
			e.Method, e.Path, e.Credential, e.Rule, e.Status = "", "", "", "", 0
			e.Error = otherKinds(e.Verdict)
			events = append(events, e)
		}
	}
	clear(r.overflow)
	return events
}

// otherKinds is the error text of an event that only counts.
func otherKinds(v policy.Verdict) string {
	if v == policy.Allow {
		return "requests of other kinds, reported by count"
	}
	return "refusals of other kinds, reported by count"
}

// isQuiet reports whether r can be dropped without losing state.
func (r *refusals) isQuiet() bool {
	for _, room := range r.limiters {
		if room != nil && room.Tokens() < refusalBurst {
			return false
		}
	}
	return len(r.known) == 0
}
