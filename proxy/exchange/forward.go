package exchange

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
	"boxgate/proxy/route"
)

// Tokens signs what tells the proxies that requests are forwarded to which box a request comes from. Safe for concurrent
// use.
type Tokens interface {
	// Token returns a token for an audience about a request to a host.
	Token(box policy.BoxID, audience, host string) (name.Secret, error)
}

// Via is the proxy of the operator's that a request is sent to in the place of its server.
type Via struct {
	Authority string
	Target    string // path and query
	way       route.Routed

	audience string          // of tokens
	headers  []policy.Header // that the proxy goes by, besides the token
}

// The headers by which the proxy learns what the request is for and which box it is from. They are those of Vercel
// Sandbox.
const (
	forwardedHost   = "Vercel-Forwarded-Host"
	forwardedScheme = "Vercel-Forwarded-Scheme"
	forwardedPort   = "Vercel-Forwarded-Port"
	forwardedPath   = "Vercel-Forwarded-Path"
	forwardedToken  = "Vercel-Sandbox-Oidc-Token"
)

var errNoTokens = errors.New("the gateway signs no identity tokens")

// forward sends the request to the proxy of its rule, if there is one: it adds the headers that the proxy goes by, in the
// place of any that the box sent.
func (r *Ruling) forward(s *Session, m *Message) error {
	to := r.header.Forward
	if to == nil {
		return nil
	}
	asked := policy.Request{Stage: policy.StageHTTP, Box: s.Box.ID, Name: to.Name, Port: to.Port, Protocol: policy.TCP}
	way, _ := route.Now(r.Policy.Forwarding(), asked, policy.Evidence{Opening: policy.OpeningSecure}) // refuses if it is not known
	header := func(n, value string) policy.Header {
		return policy.Header{Name: n, Value: name.NewSecret(value)}
	}
	r.Via = &Via{
		Authority: to.Authority(), Target: to.Target(m.Path), way: way, audience: to.URL(),
		headers: []policy.Header{
			header(forwardedHost, r.Request.Name.String()), header(forwardedScheme, "https"),
			header(forwardedPort, strconv.Itoa(int(r.Request.Port))), header(forwardedPath, m.Path),
		},
	}
	return r.introduce(s)
}

// introduce adds the headers for the proxy, with a token of now: it is valid for so short a time that one from before a body
// was read may have expired.
func (r *Ruling) introduce(s *Session) error {
	if r.Via == nil {
		return nil
	}
	if s.Core.Tokens == nil {
		return errNoTokens
	}
	token, err := s.Core.Tokens.Token(s.Box.ID, r.Via.audience, r.Request.Name.String())
	if err != nil {
		return err
	}
	r.Set = append(append(slices.Clip(r.Set), r.Via.headers...), policy.Header{Name: forwardedToken, Value: token})
	return nil
}

// Target returns where a request that was not refused is sent.
func (r *Ruling) Target(s *Session) origin.Target {
	to := origin.To(r.way, s.Secure)
	if r.Via != nil {
		to = to.Via(r.Via.way)
	}
	return to.As(r.identity)
}

// stands asks a policy whether a request may go on by the proxy, which has an address, the zero Addr if that is not yet
// known. The zero reason is no objection.
func (v *Via) stands(s *Session, c *policy.Compiled, at netip.Addr) policy.Decision {
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
