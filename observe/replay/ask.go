package replay

import (
	"net/netip"
	"slices"
	"strings"

	"boxgate/audit"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Why is the reason why an observation cannot be replayed.
type Why string

// The reasons.
const (
	WhyOutside  Why = "outside_the_policy" // denied for a reason that no policy changes: a limit, a malformed request, a server that failed
	WhyUnnamed  Why = "unnamed"            // counted without its destination
	WhyUnknown  Why = "not_recorded"       // what the decision depended on was not recorded, or is not text that can be kept
	WhyURL      Why = "public_url"         // a visit to a public URL, which the policy does not decide
	WhyLogin    Why = "login"              // a command inside a connection where the gateway logs in
	WhyName     Why = "name"               // the proxy would decide by a name that was not sent
	WhyNames    Why = "several_names"      // the address had several names, and it is unknown which were
	WhyAddress  Why = "address"            // the decision depends on addresses that are not known
	WhyBytes    Why = "first_bytes"        // the decision would wait for bytes that were never read
	WhyRequests Why = "requests"           // the requests in the connection would be judged, and were never read
	WhyPaths    Why = "paths"              // rules look at paths, and not all are known
	WhyQuery    Why = "query"              // rules look at queries, and not all are known, or their values matter
	WhyHeaders  Why = "headers"            // rules look at header fields
	WhyBody     Why = "body"               // rules look at messages in bodies
	WhyControl  Why = "not_reproduced"     // the policy in force does not give the verdict that it gave
	WhyTime     Why = "time"               // the replay took too long
)

// answer is the decision of a policy about one example of an observation.
type answer struct {
	policy.Decision
	unresolved bool // allowed is the name: its addresses are not known, and the policy would decide about each
	judged     bool // allowed is only the connection: its requests would be judged
	assumed    bool // it was assumed that the client would send the name that DNS answered
	why        Why  // there is no decision
}

func cannot(why Why) answer             { return answer{why: why} }
func decided(d policy.Decision) answer  { return answer{Decision: d} }
func denied(reason name.Reason) answer  { return decided(policy.Decision{Reason: reason}) }
func (a *answer) sameAs(b *answer) bool { return a.why == b.why && a.Verdict == b.Verdict }

// example is one of the destinations and requests that an observation sums up.
type example struct {
	addr  netip.Addr
	path  string
	query string // names of parameters
	why   Why    // stands for those beyond the examples kept
}

// replayable are the reasons of decisions that a policy makes.
var replayable = []name.Reason{
	name.ReasonAllowAll, name.ReasonAllowedCIDR, name.ReasonAllowedDomain, name.ReasonNotDenied, name.ReasonRequestRule,
	name.ReasonProtectedRange, name.ReasonDeniedDomain, name.ReasonDeniedCIDR, name.ReasonDenyAll, name.ReasonNotAllowed,
	name.ReasonHeaderRule, name.ReasonProtocol, name.ReasonNoName, name.ReasonAmbiguousPath, name.ReasonAmbiguousRequest,
	name.ReasonUnreadableContent,
}

// unasked returns the reason why no policy can be asked about an observation, or "".
func unasked(o *observe.Observation) Why {
	switch {
	case o.Stage == policy.StageURL:
		return WhyURL
	case o.Reason == name.ReasonUnnamed || o.Name == "" && !o.Addr.IsValid():
		return WhyUnnamed
	case !slices.Contains(replayable, o.Reason):
		return WhyOutside
	case o.Stage == policy.StageConn && o.Method != "":
		return WhyLogin
	case o.Stage == policy.StageKernel && o.Protocol == "":
		return WhyOutside
	case (o.Stage == policy.StageConn || o.Stage == policy.StageHTTP) && o.Opening == "":
		return WhyUnknown
	}
	return ""
}

// ask returns the decision of a policy about an example.
func ask(c *policy.Compiled, o *observe.Observation, x example) answer {
	if x.why != "" {
		return cannot(x.why)
	}
	a := askStage(c, o, x)
	a.unresolved = a.why == "" && a.Allowed() && !x.addr.IsValid()
	return a
}

func askStage(c *policy.Compiled, o *observe.Observation, x example) answer {
	switch o.Stage {
	case policy.StageDNS:
		return askDNS(c, o, x)
	case policy.StageKernel:
		return askKernel(c, o, x)
	case policy.StageConn:
		return askConn(c, o, x)
	case policy.StageHTTP:
		return askRequest(c, o, x)
	}
	return cannot(WhyUnknown)
}

// askDNS decides about a query as [boxgate/dns] does: about the name, then about an address of the answer.
func askDNS(c *policy.Compiled, o *observe.Observation, x example) answer {
	n, err := name.Parse(o.Name)
	if err != nil {
		return denied(name.ReasonNotAllowed)
	}
	d := c.Decide(policy.Request{Stage: policy.StageDNS, Name: n})
	if !d.Allowed() && (d.Reason != name.ReasonNotAllowed || !c.ResolvesOthers(n)) {
		return decided(d)
	}
	if x.addr.IsValid() {
		return decided(c.Decide(policy.Request{Stage: policy.StageDNS, Name: n, Addr: x.addr}))
	}
	if !d.Allowed() {
		return cannot(WhyAddress)
	}
	return decided(d)
}

// askKernel decides about a packet. If it would go to the proxy, the name is decisive. DNS may have answered one for the address.
func askKernel(c *policy.Compiled, o *observe.Observation, x example) answer {
	plan := c.Kernel()
	d := c.Decide(policy.Request{Stage: policy.StageKernel, Addr: x.addr, Port: o.Port, Protocol: o.Protocol})
	switch plan.Fate(x.addr, o.Port, o.Protocol) {
	case policy.Forwarded:
		return decided(d)
	case policy.Refused:
		if d.Allowed() {
			return denied(name.ReasonProtocol)
		}
		return decided(d)
	}
	switch d.Reason {
	case name.ReasonDenyAll, name.ReasonProtectedRange, name.ReasonDeniedCIDR, name.ReasonProtocol, name.ReasonQuota, name.ReasonSourceAddress:
		return decided(d)
	}
	n, err := name.Parse(o.Name)
	if err != nil {
		return cannot(WhyName)
	}
	r := policy.Request{Stage: policy.StageConn, Addr: x.addr, Port: o.Port, Protocol: policy.TCP}
	other := route(c, r, policy.Evidence{Opening: policy.OpeningOther, Told: []name.Name{n}})
	r.Name = n
	tls := route(c, r, policy.Evidence{Opening: policy.OpeningTLS})
	if !other.sameAs(&tls) {
		return cannot(WhyName)
	}
	tls.assumed = true
	return tls
}

// askConn decides about a connection by its first bytes.
func askConn(c *policy.Compiled, o *observe.Observation, x example) answer {
	seen := o.Seen()
	r := policy.Request{Stage: policy.StageConn, Addr: x.addr, Port: o.Port, Protocol: policy.TCP}
	e := policy.Evidence{Opening: seen.Opening}
	if seen.Source == audit.NameGuess && seen.Opening != policy.OpeningTLS {
		return cannot(WhyNames)
	}
	if seen.Source != audit.NameNone {
		n, err := name.Parse(o.Name)
		switch {
		case err != nil:
			return cannot(WhyUnknown)
		case seen.Source == audit.NameSent:
			r.Name = n
			if seen.Proxied && seen.Opening == policy.OpeningTLS {
				e.Bound = n
			}
		case seen.Source == audit.NameBound:
			e.Bound = n
		case seen.Opening != policy.OpeningTLS && seen.Opening != policy.OpeningUnreadable:
			e.Told = []name.Name{n}
		}
	}
	a := route(c, r, e)
	if a.judged && o.Action == audit.ActionSplice {
		return cannot(WhyRequests)
	}
	return a
}

// route asks for the route of a connection, whatever unknown evidence would be.
func route(c *policy.Compiled, r policy.Request, e policy.Evidence) answer {
	e.Dialled, e.Owned = r.Addr, policy.Yes
	e.Ruled = policy.No
	best := of(c, c.Route(r, e), e)
	e.Ruled = policy.Yes
	worst := of(c, c.Route(r, e), e)
	if !best.sameAs(&worst) {
		return cannot(WhyAddress)
	}
	return best
}

// of returns a route as an answer.
func of(c *policy.Compiled, rt policy.Route, e policy.Evidence) answer {
	switch {
	case rt.Needs == policy.NeedAddr:
		return cannot(WhyAddress)
	case rt.Action == policy.AwaitClient && e.Opening != policy.OpeningConnect:
		return cannot(WhyBytes)
	}
	a := decided(rt.Decision)
	a.Verdict = policy.Allow
	if rt.Action == policy.Refuse {
		a.Verdict = policy.Deny
	}
	a.judged = rt.Action == policy.Intercept && c.Judges(rt.Request.Name, rt.Request.Port).Rules
	return a
}

// askRequest decides about a request. If the connection would not be intercepted, the connection decides.
func askRequest(c *policy.Compiled, o *observe.Observation, x example) answer {
	seen := o.Seen()
	r := policy.Request{Stage: policy.StageHTTP, Addr: x.addr, Port: o.Port, Protocol: policy.TCP}
	if seen.Source == audit.NameSent {
		n, err := name.Parse(o.Name)
		if err != nil {
			return cannot(WhyUnknown)
		}
		r.Name = n
	}
	if seen.Opening == policy.OpeningSecure {
		conn := route(c, r, policy.Evidence{Opening: policy.OpeningTLS})
		if conn.why != "" || !conn.Allowed() || !c.Intercepts(r.Name, r.Port) {
			return conn
		}
	}
	r.Method, r.Path = o.Method, x.path
	if x.query != "" {
		r.Query = strings.ReplaceAll(x.query, "&", "=&") + "="
	}
	j := c.Judges(r.Name, r.Port)
	if why := unknownParts(c, &j, &r); why != "" {
		bare := r
		bare.Stage, bare.Method, bare.Path, bare.Query = policy.StageConn, "", "", ""
		if d := c.Decide(bare); !d.Allowed() {
			return decided(d)
		}
		return cannot(why)
	}
	a := route(c, r, policy.Evidence{Opening: seen.Opening, Proxied: seen.Proxied})
	switch {
	case a.Unread != 0:
		return cannot(WhyBody)
	case a.why == "" && a.Allowed() && seen.Opening == policy.OpeningSecure:
		if _, d := c.HeaderRule(r); d.Reason != "" {
			return decided(d)
		}
	}
	return a
}

// unknownParts returns the reason why rules cannot judge a request.
func unknownParts(c *policy.Compiled, j *policy.Judging, r *policy.Request) Why {
	switch {
	case j.Headers:
		return WhyHeaders
	case j.Query && c.JudgesValues(r.Name, r.Port, r.Query):
		return WhyQuery
	}
	return ""
}
