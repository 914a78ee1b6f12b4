package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// Secrets returns the values of the secrets that header rules name. On an error the request that needs the value is
// refused, with the error's text in the decision log. Safe for concurrent use.
type Secrets interface {
	Secret(ctx context.Context, name string) (name.Secret, error)
}

// errNoSecrets is the error for every secret if the gateway has no secrets.
var errNoSecrets = errors.New("the gateway has no secrets")

// Text implements [rule.Secrets].
func (k *Core) Text(ctx context.Context, name string) (string, error) { return k.secret(ctx, name) }

// secret returns the value of a secret, checked to be a valid header value.
func (k *Core) secret(ctx context.Context, name string) (string, error) {
	v, err := k.fetch(ctx, name)
	if err != nil {
		return "", err
	}
	if err := match.CheckHeaderValue(v); err != nil {
		return "", fmt.Errorf("secret %q: %w", name, err)
	}
	return v, nil
}

// fetch returns the value of a secret, which is not empty.
func (k *Core) fetch(ctx context.Context, name string) (string, error) {
	s, err := k.document(ctx, name)
	if err != nil {
		return "", err
	}
	v := s.Reveal()
	if v == "" {
		return "", fmt.Errorf("secret %q: the value is empty", name)
	}
	return v, nil
}

// setHeaders sets the header fields of the rule with their current values.
func (r *Decision) setHeaders(ctx context.Context, s *Session) (err error) {
	r.Set = nil
	if setter := r.header.OnRequests().Headers; setter != nil {
		r.Set, err = setter.HeaderFields(ctx, s.Core)
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
	if err = r.setHeaders(ctx, s); err == nil {
		r.Swaps, err = s.Core.swaps(ctx, r.header.OnRequests(), m.Tokens.Found)
	}
	if err == nil {
		r.identity, err = s.Core.identity(ctx, r.header.OnConnections().Identity)
	}
	if err == nil {
		err = r.redirect(s, m)
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
func (k *Core) swaps(ctx context.Context, does *rule.Request, tokens []placeholder.Sent) ([]placeholder.Swap, error) {
	var out []placeholder.Swap
	for _, t := range tokens {
		ph := does.Placeholder(t.Text)
		v, err := ph.Bare(ctx, k)
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
func (k *Core) refreshed(ctx context.Context, does *rule.Request, swaps []placeholder.Swap) ([]placeholder.Swap, error) {
	out := slices.Clone(swaps)
	for i := range out {
		if ph := does.Placeholder(out[i].Token); ph != nil {
			var err error
			if out[i].Value, err = ph.Bare(ctx, k); err != nil {
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
