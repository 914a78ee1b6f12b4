package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
	"boxgate/proxy/scrub"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// Secrets returns the values of the secrets that header rules name. On an error the request that needs the value is
// refused, with the error's text in the decision log. Safe for concurrent use.
type Secrets interface {
	Secret(ctx context.Context, name string) (name.Secret, error)
}

// BoundSecrets are one state of the secrets, where some may only be sent to certain hosts. Safe for concurrent use.
type BoundSecrets interface {
	Secrets
	// Permits returns an error if a secret may not be sent to a host.
	Permits(source string, host name.Name, port uint16) error
}

// Snapshots are Secrets whose values can be replaced at any time. All values of a request are of one snapshot.
type Snapshots interface {
	// Snapshot returns the present state. It does not allocate.
	Snapshot() BoundSecrets
}

// values are the secrets of one request.
type values struct {
	from  Secrets      // nil: the gateway has no secrets
	bound BoundSecrets // nil: no secret is bound to hosts
}

// values returns the present state of the secrets.
func (k *Core) values() values {
	if s, ok := k.Secrets.(Snapshots); ok {
		now := s.Snapshot()
		return values{now, now}
	}
	return values{from: k.Secrets}
}

// permit returns an error if a secret may not be sent to a host.
func (v *values) permit(sources []string, host name.Name, port uint16) error {
	if v.bound == nil {
		return nil
	}
	for _, source := range sources {
		if err := v.bound.Permits(source, host, port); err != nil {
			return err
		}
	}
	return nil
}

// errNoSecrets is the error for every secret if the gateway has no secrets.
var errNoSecrets = errors.New("the gateway has no secrets")

// Text implements [rule.Secrets]: it returns the value of a secret, checked to be a valid header value.
func (s *values) Text(ctx context.Context, name string) (string, error) {
	v, err := s.fetch(ctx, name)
	if err != nil {
		return "", err
	}
	if err := match.CheckHeaderValue(v); err != nil {
		return "", fmt.Errorf("secret %q: %w", name, err)
	}
	return v, nil
}

// fetch returns the value of a secret, which is not empty.
func (s *values) fetch(ctx context.Context, name string) (string, error) {
	found, err := s.document(ctx, name)
	if err != nil {
		return "", err
	}
	v := found.Reveal()
	if v == "" {
		return "", fmt.Errorf("secret %q: the value is empty", name)
	}
	return v, nil
}

// setHeaders sets the header fields of the rule with their current values.
func (r *Decision) setHeaders(ctx context.Context) (err error) {
	r.Set = nil
	if setter := r.header.OnRequests().Headers; setter != nil {
		r.Set, err = setter.HeaderFields(ctx, &r.values)
	}
	r.ownFields = len(r.Set)
	return err
}

// fillValues completes the decision for an allowed request: the headers to set and the values of placeholders that the box sent. It
// refuses misplaced placeholders, and requests that need an unavailable value.
func (r *Decision) fillValues(ctx context.Context, s *Session, m *Message) {
	if r.header.Pattern == (name.Pattern{}) && len(m.Tokens.Found) == 0 {
		return
	}
	if m.Tokens.Many {
		r.Refused, r.Reason, r.rule, r.err = BadRequest("The request holds too many placeholders."), name.ReasonBadRequest, "", placeholder.ErrMany
		return
	}
	if leak := r.leaked(m.Tokens.Found); leak != nil {
		r.Refused, r.Reason, r.rule = LeakProblem(), name.ReasonPlaceholderLeak, ""
		r.err = leak.Error(r.Policy.PlaceholderVariable(leak.Text))
		return
	}
	var err error
	r.revokedBefore = s.Core.Revoked.count.Load()
	if err = r.takeValues(s); err == nil {
		err = r.setHeaders(ctx)
	}
	if err == nil {
		r.Swaps, err = r.values.swaps(ctx, r.header.OnRequests(), m.Tokens.Found)
	}
	if err == nil {
		r.identity, err = s.Core.identity(ctx, &r.values, r.header.OnConnections().Identity)
	}
	if err == nil {
		err = r.redirect(s, m)
	}
	if err == nil {
		err = r.checkFence() // fetching values may have taken long
	}
	if errors.Is(err, errFenced) {
		r.Set, r.Swaps, r.err = nil, nil, err
		r.Reason, r.rule = name.ReasonFleetFenced, r.header.Pattern.String()
		r.Refused = problem.Fenced(r.Request.Name.String(), r.rule)
		return
	}
	if err != nil {
		r.Set, r.Swaps, r.err = nil, nil, err
		r.Reason, r.rule = name.ReasonSecretUnavailable, r.header.Pattern.String()
		r.Refused = &problem.Problem{Status: http.StatusBadGateway, Reason: r.Reason, Rule: r.rule,
			Detail: "A secret that the gateway sets for this host is not available."}
		return
	}
	r.sources = r.sourcesOf()
	s.Core.Revoked.markUsed(r.sources)
}

// errFenced refuses a request with values of the fleet after the fence has closed.
var errFenced = errors.New("the header rule of the host is one of the fleet, and this host is cut off from the fleet")

// Fenced reports whether values of the rule must not be sent, because it is one of the fleet and the fence has closed.
func (r *Decision) Fenced() bool { return r.Policy.Fenced(&r.header) }

// checkFence returns [errFenced] if values of the rule must not be sent.
func (r *Decision) checkFence() error {
	if r.Fenced() {
		return errFenced
	}
	return nil
}

// takeValues takes the present state of the secrets for the request, so that a replacement during it changes all of its values together. It
// fails if one of them may not be sent to the host.
func (r *Decision) takeValues(s *Session) error {
	if err := r.checkFence(); err != nil {
		return err
	}
	r.values = s.Core.values()
	does := r.header.OnRequests()
	err := r.values.permit(does.Sources, r.Request.Name, r.Request.Port)
	if err == nil {
		err = r.values.permit(does.Swapped, r.Request.Name, r.Request.Port)
	}
	if i := r.header.OnConnections().Identity; err == nil && i != nil {
		err = r.values.permit(i.Sources(), r.Request.Name, r.Request.Port)
	}
	return err
}

// named caches the list of headers set for the latest request, for requests with the same ones.
type named struct {
	set   []rule.Field
	names []string
}

// headers is [headerNames], without a new list if the previous request had the same headers set.
func (n *named) headers(set []rule.Field, swaps []placeholder.Swap) []string {
	if len(set) == 0 || len(swaps) > 0 {
		return headerNames(set, swaps)
	}
	if len(n.set) != len(set) || &n.set[0] != &set[0] {
		n.set, n.names = set, headerNames(set, nil)
	}
	return n.names
}

// headerNames lists the headers that were set or changed, for the decision log.
func headerNames(set []rule.Field, swaps []placeholder.Swap) []string {
	if len(set)+len(swaps) == 0 {
		return nil
	}
	names := make([]string, 0, len(set)+len(swaps))
	for i := range set {
		if !set[i].Remove {
			names = append(names, set[i].Name)
		}
	}
	for i := range swaps {
		name := textproto.CanonicalMIMEHeaderKey(swaps[i].Header)
		if name == "" {
			name = "query"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// leaked returns a placeholder of the request that has no value in the rule of its host or that is not in a header, or nil.
func (r *Decision) leaked(tokens []placeholder.Sent) *placeholder.Sent {
	does := r.header.OnRequests()
	for i := range tokens {
		t := &tokens[i]
		if !t.Swappable(does.Places) || does.Placeholder(t.Text) == nil {
			return t
		}
	}
	return nil
}

// LeakProblem returns the problem for a request with a placeholder where its value does not belong.
func LeakProblem() *problem.Problem {
	return &problem.Problem{Status: http.StatusForbidden, Reason: name.ReasonPlaceholderLeak,
		Detail: "A placeholder was sent where its value does not belong."}
}

// swaps returns the values of the placeholders in the request. It does not fetch the values of other placeholders.
func (s *values) swaps(ctx context.Context, does *rule.Request, tokens []placeholder.Sent) ([]placeholder.Swap, error) {
	var out []placeholder.Swap
	for _, t := range tokens {
		ph := does.Placeholder(t.Text)
		v, err := ph.Bare(ctx, s)
		if err != nil {
			return nil, err
		}
		if t.EndsAtColon() && strings.Contains(v, ":") { // RFC 7617, 2: the server would split it there
			return nil, fmt.Errorf("the value of %s has a colon: it cannot be the user of basic authentication", ph.Variable)
		}
		out = append(out, placeholder.Swap{Token: t.Text, Value: v, Header: t.Header})
	}
	return out, nil
}

// refreshed returns swaps with their current values.
func (s *values) refreshed(ctx context.Context, does *rule.Request, swaps []placeholder.Swap) ([]placeholder.Swap, error) {
	out := slices.Clone(swaps)
	for i := range out {
		if ph := does.Placeholder(out[i].Token); ph != nil {
			var err error
			if out[i].Value, err = ph.Bare(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// setScrub completes the decision for an allowed request: the secrets to mask in its response.
func (r *Decision) setScrub(s *Session) {
	if !r.header.Scrub || r.Refused != nil {
		return
	}
	r.Scrub = r.maskSet(s)
}

// maskSet returns the set of texts to mask in responses. It supersedes earlier sets of the host.
func (r *Decision) maskSet(s *Session) *scrub.Set {
	later := r.header.Shared != nil && r.header.Shared.Sources || r.header.OnRequests().Later
	return s.Usage.Told.Set(r.Request.Name, r.secrets(), later, time.Now())
}

// maskAlso masks the values of a message in the host's responses, including those on this connection: the new set
// supersedes the one that the tunnel uses, and contains its texts as well.
func (r *Decision) maskAlso(s *Session, values []string) {
	var texts []string
	for _, v := range values {
		texts = append(texts, scrub.Texts(v)...)
	}
	s.Usage.Told.Set(r.Request.Name, texts, true, time.Now())
}

// secrets returns the texts to mask: those sent with this request, and every literal of the rule and its alternatives.
func (r *Decision) secrets() (texts []string) {
	for i := range r.Set[:min(len(r.Set), r.ownFields)] {
		f := &r.Set[i]
		texts = append(texts, scrub.Texts(f.Value.Reveal())...)
		if f.Before+f.After > 0 {
			texts = append(texts, scrub.Texts(f.Bare())...)
		}
	}
	for _, literal := range r.header.OnRequests().Masked {
		texts = append(texts, scrub.Texts(literal.Reveal())...)
	}
	for i := range r.Swaps {
		texts = append(texts, scrub.Texts(r.Swaps[i].Value)...)
	}
	if shared := r.header.Shared; shared != nil {
		for i := range shared.Literals {
			texts = append(texts, scrub.Texts(shared.Literals[i].Reveal())...)
		}
	}
	return append(texts, r.maskTexts...)
}

// identities caches the parsed client certificates of rules. The zero value is empty. Its size is limited by the pairs of
// secrets in the configuration. Safe for concurrent use.
type identities struct {
	mu   sync.Mutex
	last map[rule.Identity]parsedIdentity
}

// parsedIdentity is an identity with the values from which it was parsed.
type parsedIdentity struct {
	certificate, key name.Secret
	identity         *origin.Identity
}

var errExpired = errors.New("the certificate has expired")

// identity returns the client certificate of a rule, or nil if it has none.
func (k *Core) identity(ctx context.Context, s *values, of rule.Identity) (*origin.Identity, error) {
	if of == nil {
		return nil, nil
	}
	certificate, err := s.document(ctx, of.CertificateSource())
	if err != nil {
		return nil, err
	}
	key, err := s.document(ctx, of.KeySource())
	if err != nil {
		return nil, err
	}
	identity, err := k.identities.get(of, certificate, key)
	if err == nil && identity.Expired(fault.Now()) {
		err = errExpired
	}
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", of.CertificateSource(), err)
	}
	return identity, nil
}

// get returns the identity for two values, parsed or from the cache.
func (i *identities) get(effect rule.Identity, certificate, key name.Secret) (*origin.Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if last, ok := i.last[effect]; ok && last.certificate.Equal(certificate) && last.key.Equal(key) {
		return last.identity, nil
	}
	pair, err := effect.Certificate(certificate, key)
	if err != nil {
		delete(i.last, effect)
		return nil, err
	}
	if i.last == nil {
		i.last = map[rule.Identity]parsedIdentity{}
	}
	identity := origin.NewIdentity(pair, certificate, key)
	i.last[effect] = parsedIdentity{certificate, key, identity}
	return identity, nil
}

// document returns the value of a secret that need not be a valid header value.
func (s *values) document(ctx context.Context, n string) (name.Secret, error) {
	if s.from == nil {
		return name.Secret{}, fmt.Errorf("secret %q: %w", n, errNoSecrets)
	}
	v, err := s.from.Secret(ctx, n)
	if err != nil {
		return name.Secret{}, fmt.Errorf("secret %q: %w", n, err)
	}
	return v, nil
}

// Credential is a value for logging in on a connection. The zero value is a literal.
type Credential struct {
	core          *Core
	source        string
	revokedBefore uint64
}

// Credential returns the value of a secret for a connection to a host that is about to be logged in, and a Credential for checking later
// whether it was revoked. It fails if the secret may not be sent to the host.
func (k *Core) Credential(ctx context.Context, source string, host name.Name, port uint16) (name.Secret, Credential, error) {
	c := Credential{k, source, k.Revoked.count.Load()}
	s := k.values() // one state for both: a new value may be for other hosts
	if err := s.permit([]string{source}, host, port); err != nil {
		return name.Secret{}, c, err
	}
	v, err := s.fetch(ctx, source)
	if err != nil {
		return name.Secret{}, c, err
	}
	k.Revoked.markUsed([]string{source})
	return name.NewSecret(v), c, nil
}

// Revoked reports whether the value was revoked after it was fetched.
func (c Credential) Revoked() bool {
	return c.core != nil && c.core.Revoked.since(c.revokedBefore, []string{c.source})
}

// message returns the request in its forwarded form, for signing.
func (w *Rewriting) message() *rule.Message {
	m := &rule.Message{
		Method: w.Method, Host: w.Authority, Target: w.Target, Length: w.Length, Body: w.Body, Altered: w.Changed, Time: w.s.Core.now(),
	}
	switch {
	case w.Trailers:
		m.Length = -1
	case w.Whole:
		m.Length = int64(len(w.Body))
	}
	m.Fields = append(m.Fields, w.Fields...)
	for i := range w.r.Set {
		if h := &w.r.Set[i]; !h.Remove {
			m.Fields = append(m.Fields, Field{Name: h.Name, Value: h.Value.Reveal()})
		}
	}
	return m
}

// now returns the time by the gateway's clock.
func (k *Core) now() time.Time {
	if k.Clock == nil {
		return time.Now()
	}
	return k.Clock()
}

// sign adds the rule's signature to the headers that are set. Its cleartext parts are masked even if the rule does not
// scrub, but then only in error responses: other responses may be parts of large objects.
func (w *Rewriting) sign(ctx context.Context) error {
	signer := w.r.header.OnRequests().Signer
	if signer == nil {
		return nil
	}
	if w.hash && w.read && !w.Whole {
		return signer.TooLarge()
	}
	signed, err := signer.Sign(ctx, &w.r.values, w.message())
	if err != nil {
		return err
	}
	if signed.Shown != "" {
		w.r.maskTexts = append(w.r.maskTexts, scrub.Texts(signed.Shown)...)
		w.r.Scrub, w.r.errorsOnly = w.r.maskSet(w.s), !w.r.header.Scrub
	}
	w.r.Set, w.Target = slices.Concat(w.r.Set, signed.Set), signed.Target // requests may share the rule's list
	return nil
}

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
	way := route.Routed{Asked: asked, Known: policy.Evidence{Opening: policy.OpeningSecure}}
	way.UpdateNow(r.Policy.Forwarding()) // refuses if the route depends on further evidence
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

// Target returns the destination of a request that was not refused. It is valid until the next decision in r.
func (r *Decision) Target(s *Session) *origin.Target {
	on := r.header.OnConnections()
	r.to.Set(origin.Options{Secure: s.Secure, Identity: r.identity, Legacy: on.LegacyUpstream, HTTP1: on.Lenient})
	if r.Via != nil {
		return r.to.Via(r.Via.way)
	}
	return &r.to
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
		way.Bind(at)
	}
	if why := v.way.OverruledBy(s.Core.Router.Reroute(c.Forwarding(), s.Box, way)); why != nil {
		return why.Decision
	}
	return policy.Decision{}
}
