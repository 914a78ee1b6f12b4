package policy

import (
	"slices"
	"strings"

	"boxgate/policy/name"
)

// passing is the plain interpreter's decision about a connection or request: the action, the name of the route, whether it must
// go to an address of that name, and the reason.
type passing struct {
	action Action
	name   name.Name
	byName bool
	reason name.Reason
}

func refusal(n name.Name, why name.Reason) passing { return passing{Refuse, n, false, why} }

// route answers like Compiled.Route, sentence by sentence from docs/security.md ("Why nothing passes an interceptor"), for
// TCP. It uses the plain decide, and counts missing evidence as the worse answer.
func (in interpreter) route(r Request, e Evidence) passing {
	http := e.Opening == OpeningRequest || e.Opening == OpeningSecure
	r.Stage = StageConn
	if http {
		r.Stage = StageHTTP
	}
	p := in.start(r, e)
	if p.action != Splice && p.action != AwaitServer && p.action != Forward && p.action != Broker {
		return p
	}
	// "Where it goes, once that is known, is decided again."
	at := e.Dialled
	if !at.IsValid() && p.byName {
		return p
	}
	if !at.IsValid() {
		at = r.Addr
	}
	dial := Request{Stage: StageDial, Name: p.name, Addr: at, Port: r.Port, Protocol: TCP}
	verdict, why := in.decide(dial)
	if verdict == Deny {
		return refusal(p.name, why)
	}
	// "Bytes without a name do not go where a host with rules may be, unless the policy lists the name itself."
	// Where there is a login on the port, neither a name in TLS nor a listed one is enough.
	withName := http || e.Opening == OpeningTLS && !r.Name.IsZero() && !in.loginsOn(r.Port)
	listedByName := why == name.ReasonAllowedDomain && !in.anyNameAlone(dial) && r.Port != 80 && r.Port != 443 && !in.loginsOn(r.Port)
	if p.action != Broker && !withName && e.Ruled != No && !listedByName {
		return refusal(p.name, name.ReasonProtocol)
	}
	// "What goes by a name goes to an address of that name."
	sameAddr := e.Dialled.Unmap().WithZone("") == r.Addr.Unmap().WithZone("")
	if e.Dialled.IsValid() && e.Owned != Yes && (p.byName || !sameAddr) {
		return refusal(p.name, name.ReasonPolicyChanged)
	}
	return p
}

// anyNameAlone reports whether no entry but "*" lists the name.
func (in interpreter) anyNameAlone(r Request) bool {
	return !slices.ContainsFunc(in.spec.AllowedDomains, func(s string) bool {
		return s != "*" && !strings.HasPrefix(s, "*:") && in.domainMatches(s, r)
	})
}

// loginsOn reports whether there is a login to any host on the port.
func (in interpreter) loginsOn(port uint16) bool {
	return slices.ContainsFunc(in.headers, func(h HeaderRule) bool { return h.OnConnections().Login != nil && h.Pattern.Port() == port })
}

// hasLogin reports whether there is a login to the host on the port.
func (in interpreter) hasLogin(n name.Name, port uint16) bool {
	return slices.ContainsFunc(in.headers, func(h HeaderRule) bool { return h.OnConnections().Login != nil && h.Pattern.Match(n, port) })
}

// startBroker: the gateway logs in where the connection can be for no other host with a login, or with requests that are judged.
func (in interpreter) startBroker(r Request, names []name.Name) passing {
	var left []name.Name
	for _, n := range names {
		if in.hasLogin(n, r.Port) || in.hasRules(n, r.Port) {
			left = append(left, n)
		}
	}
	names = left
	r.Name = names[0]
	for _, n := range names {
		if n != r.Name {
			return refusal(name.Name{}, name.ReasonNoName)
		}
	}
	verdict, why := in.decide(r)
	if verdict == Deny {
		return refusal(r.Name, why)
	}
	for _, rule := range in.spec.Rules {
		for _, h := range rule.Hosts {
			if in.domainMatches(h, Request{Name: r.Name, Port: r.Port}) {
				return refusal(r.Name, name.ReasonProtocol)
			}
		}
	}
	return passing{Broker, r.Name, true, why}
}

// mayHaveRules reports whether the address that was asked for may be that of a host with rules.
func mayHaveRules(r Request, e Evidence) bool {
	elsewhere := e.Dialled.IsValid() && e.Dialled.Unmap().WithZone("") != r.Addr.Unmap().WithZone("")
	return e.Ruled != No || elsewhere
}

// namesDecideOn reports whether an entry of denied_domains or a rule is about the port.
func (in interpreter) namesDecideOn(port uint16) bool {
	covered, _ := in.rulesOn(port)
	return covered || in.deniesNamesOn(port)
}

// hasRules reports whether a header or request rule is about the name on the port.
func (in interpreter) hasRules(n name.Name, port uint16) bool {
	if n.IsZero() {
		return false
	}
	for _, rule := range in.spec.Rules {
		for _, h := range rule.Hosts {
			if in.domainMatches(h, Request{Name: n, Port: port}) {
				return true
			}
		}
	}
	// The most specific pattern of header rules wins alone, even if it has no effects.
	best, applies := -1, false
	for _, h := range in.headers {
		p := h.Pattern.Port()
		if p == 0 {
			p = 443
		}
		host, _, _ := strings.Cut(h.Pattern.String(), ":")
		weight := 2 * strings.Count(host, ".")
		if !h.Pattern.IsWildcard() {
			weight = 1000
		}
		if p == port && in.domainMatches(host, Request{Name: n}) && weight > best {
			best, applies = weight, h.Applies()
		}
	}
	return applies
}

// toItsOwner reports whether a name that is allowed is so for addresses of that name alone.
func (in interpreter) toItsOwner(r Request) bool {
	_, why := in.destination(r)
	switch why {
	case name.ReasonAllowedDomain:
		return !r.Name.IsZero()
	case name.ReasonAllowAll, name.ReasonNotDenied:
		return in.mustDial(r)
	}
	return false
}

// mayBeLookedUp reports whether DNS would look a name up.
func (in interpreter) mayBeLookedUp(n name.Name) bool {
	verdict, _ := in.decide(Request{Stage: StageDNS, Name: n})
	return verdict == Allow || in.spec.resolvesOthers()
}

// start is the route but for where it arrives.
func (in interpreter) start(r Request, e Evidence) passing {
	names := e.Told // which the connection may be for when its bytes do not say
	if !e.Bound.IsZero() {
		names = []name.Name{e.Bound}
	}
	switch e.Opening {
	case OpeningSilent, OpeningPartial, OpeningLenient, OpeningOther, OpeningEnded:
		for _, n := range names {
			if in.hasLogin(n, r.Port) {
				return in.startBroker(r, names)
			}
		}
	}
	web, greets := r.Port == 80 || r.Port == 443, slices.Contains([]uint16{21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900}, r.Port)
	switch e.Opening {
	case OpeningConnect:
		verdict, why := in.decide(r)
		if verdict == Deny {
			return refusal(r.Name, why)
		}
		return passing{AwaitClient, r.Name, false, why}
	case OpeningRequest, OpeningSecure:
		return in.startRequest(r, e)
	case OpeningTLS:
		if !r.Name.IsZero() {
			return in.startNamed(r, e)
		}
		return in.startByAddress(r, e, name.ReasonNoName, false)
	case OpeningSilent, OpeningPartial:
		mustGoOn := web
		for _, n := range append([]name.Name{e.Bound}, e.Told...) {
			mustGoOn = mustGoOn || in.hasRules(n, r.Port)
		}
		if e.Opening == OpeningPartial && !greets && in.namesDecideOn(r.Port) {
			mustGoOn = true
		}
		if mustGoOn {
			return passing{AwaitClient, r.Name, false, name.ReasonPeekTimeout}
		}
	case OpeningLenient, OpeningOther, OpeningEnded:
	default:
		return in.startByAddress(r, e, name.ReasonProtocol, true)
	}
	if web {
		return in.startByAddress(r, e, name.ReasonNoName, false)
	}
	if in.namesDecideOn(r.Port) && (e.Opening == OpeningLenient || e.Opening == OpeningPartial) {
		return in.startByAddress(r, e, name.ReasonProtocol, true)
	}
	p := in.startTold(r, names)
	if p.action == Splice && e.Opening == OpeningSilent && in.namesDecideOn(r.Port) && !greets && !e.Greeted {
		p.action = AwaitServer
	}
	return p
}

func (in interpreter) startRequest(r Request, e Evidence) passing {
	verdict, why := in.decide(r)
	_, where := in.destination(r)
	switch {
	case verdict == Deny:
		return refusal(r.Name, why)
	case e.Opening == OpeningSecure && r.Name.IsZero():
		return refusal(r.Name, name.ReasonAuthorityMismatch)
	case in.hasLogin(r.Name, r.Port):
		return refusal(r.Name, name.ReasonProtocol)
	case r.Name.IsZero() && where != name.ReasonAllowedCIDR && in.namesDecideOn(r.Port):
		return refusal(r.Name, name.ReasonNoName)
	}
	byName := e.Opening == OpeningSecure || in.toItsOwner(r) || !r.Addr.IsValid() || in.hasRules(r.Name, r.Port)
	if !byName && mayHaveRules(r, e) {
		if r.Name.IsZero() || !in.mayBeLookedUp(r.Name) {
			return refusal(r.Name, name.ReasonAuthorityMismatch)
		}
		byName = true
	}
	return passing{Forward, r.Name, byName, why}
}

func (in interpreter) startNamed(r Request, e Evidence) passing {
	if !e.Bound.IsZero() && e.Bound != r.Name {
		return refusal(r.Name, name.ReasonAuthorityMismatch)
	}
	verdict, why := in.decide(r)
	if verdict == Deny {
		return refusal(r.Name, why)
	}
	if in.hasLogin(r.Name, r.Port) {
		return in.startBroker(r, []name.Name{r.Name})
	}
	if in.hasRules(r.Name, r.Port) {
		return passing{Intercept, r.Name, true, why}
	}
	byName := in.toItsOwner(r) || !r.Addr.IsValid()
	if !byName && mayHaveRules(r, e) {
		if !in.mayBeLookedUp(r.Name) {
			return refusal(r.Name, name.ReasonAuthorityMismatch)
		}
		byName = true
	}
	return passing{Splice, r.Name, byName, why}
}

func (in interpreter) startByAddress(r Request, e Evidence, lack name.Reason, listed bool) passing {
	r.Name = name.Name{}
	verdict, why := in.decide(r)
	if why == name.ReasonNotAllowed || why == name.ReasonNoName {
		return refusal(r.Name, lack)
	}
	if verdict == Deny {
		return refusal(r.Name, why)
	}
	if (listed || in.namesDecideOn(r.Port)) && why != name.ReasonAllowedCIDR {
		return refusal(r.Name, lack)
	}
	if in.hasRules(e.Bound, r.Port) || mayHaveRules(r, e) {
		return refusal(r.Name, lack)
	}
	if !e.Bound.IsZero() {
		named := r
		named.Name = e.Bound
		if verdict, why := in.decide(named); verdict == Deny {
			return refusal(e.Bound, why)
		}
	}
	return passing{Splice, name.Name{}, false, why}
}

func (in interpreter) startTold(r Request, names []name.Name) passing {
	if len(names) == 0 {
		r.Name = name.Name{}
		if verdict, why := in.decide(r); verdict == Allow {
			return passing{Splice, name.Name{}, false, why}
		} else {
			return refusal(r.Name, why)
		}
	}
	var said []passing
	for _, n := range names {
		r.Name = n
		verdict, why := in.decide(r)
		switch {
		case verdict == Deny:
			said = append(said, refusal(n, why))
		case in.hasRules(n, r.Port):
			said = append(said, refusal(n, name.ReasonProtocol))
		default:
			return passing{Splice, n, in.toItsOwner(r) || !r.Addr.IsValid(), why}
		}
	}
	// The reason of a denied name takes precedence over that of a name that is merely not allowed.
	for i := len(said) - 1; i >= 0; i-- {
		if said[i].reason != name.ReasonNotAllowed {
			return said[i]
		}
	}
	return said[0]
}
