package exchange

import (
	"errors"
	"net/netip"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
	"boxgate/proxy/route"
	"boxgate/rule"
)

// Tokens issues tokens that prove to the proxies of forwarding rules which box a request comes from. Safe for concurrent
// use.
type Tokens interface {
	// Token returns a token for an audience about a request to a host.
	Token(box policy.BoxID, audience, host string) (name.Secret, error)
}

// Via is the operator's proxy to which a request is forwarded instead of its server.
type Via struct {
	Authority string
	Target    string // path and query
	way       route.Routed

	to           rule.Redirect
	introduction []match.Field // headers that describe the request to the proxy
}

var errNoTokens = errors.New("the gateway signs no identity tokens")

// redirect sends the request to the proxy of its rule, if there is one. It adds the proxy's headers, which replace any that
// the box sent.
func (r *Decision) redirect(s *Session, m *Message) error {
	to := r.header.OnConnections().Redirect
	if to == nil {
		return nil
	}
	host, port := to.Proxy()
	asked := policy.Request{Stage: policy.StageHTTP, Box: s.Box.ID, Name: host, Port: port, Protocol: policy.TCP}
	way, _ := route.Now(r.Policy.Forwarding(), asked, policy.Evidence{Opening: policy.OpeningSecure}) // refuses if the route depends on further evidence
	r.Via = &Via{
		Authority: to.Authority(), Target: to.Target(m.Path), way: way, to: to,
		introduction: to.Introduction(r.Request.Name, r.Request.Port, m.Path),
	}
	return r.introduce(s)
}

// introduce adds the headers for the proxy, with a fresh token: tokens are so short-lived that one from before the body was
// read may have expired.
func (r *Decision) introduce(s *Session) error {
	if r.Via == nil {
		return nil
	}
	if s.Core.Tokens == nil {
		return errNoTokens
	}
	token, err := s.Core.Tokens.Token(s.Box.ID, r.Via.to.URL(), r.Request.Name.String())
	if err != nil {
		return err
	}
	set := make([]rule.Field, len(r.Set), len(r.Set)+len(r.Via.introduction)+1)
	copy(set, r.Set)
	for _, f := range r.Via.introduction {
		set = append(set, rule.Field{Name: f.Name, Value: name.NewSecret(f.Value)})
	}
	r.Set = append(set, rule.Field{Name: r.Via.to.TokenField(), Value: token})
	return nil
}

// Target returns the destination of a request that was not refused.
func (r *Decision) Target(s *Session) origin.Target {
	to := origin.To(r.way, s.Secure)
	if r.Via != nil {
		to = to.Via(r.Via.way)
	}
	on := r.header.OnConnections()
	if on.LegacyUpstream {
		to = to.Legacy()
	}
	if on.Lenient {
		to = to.OnlyHTTP1()
	}
	return to.As(r.identity)
}

// Lenient reports whether the response is read leniently.
func (r *Decision) Lenient() bool { return r.header.OnConnections().Lenient }

// checkPolicy evaluates a policy for whether a request may continue through the proxy at an address, which is the zero Addr if
// not yet known. A decision without a reason is no objection.
func (v *Via) checkPolicy(s *Session, c *policy.Compiled, at netip.Addr) policy.Decision {
	if v == nil {
		return policy.Decision{}
	}
	way := v.way
	if at.IsValid() {
		way.Asked, way.Known = way.At(at)
	}
	if why := v.way.OverruledBy(s.Core.Router.Reroute(c.Forwarding(), s.Box, way)); why != nil {
		return why.Decision
	}
	return policy.Decision{}
}
