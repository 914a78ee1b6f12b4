package exchange

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// This file changes parts of a request other than its header fields, where the rule of its host requires it: query
// parameters, placeholders in the query and the body, a signature.

// MaxBody is the largest body that is changed or hashed, in bytes.
const MaxBody = rule.MaxBody

// Field is one header field of a request.
type Field = match.Field

// Outgoing is an allowed request as it will be forwarded, with the headers of its decision.
type Outgoing struct {
	Method, Authority string
	Target            string  // path and query
	Fields            []Field // the client's own, as forwarded
	Length            int64   // of the body; -1 if unknown
	Upgrades          bool    // it opens a WebSocket
}

// Rewriting changes one request. The caller creates it with [Session.Rewrite], passes the body to Add if requested, calls
// End, and calls Close when the body has been sent.
type Rewriting struct {
	Outgoing
	Body     []byte // the body, or its beginning
	Whole    bool   // Body is complete
	Trailers bool   // there are trailers, so no length is sent; set before End
	Changed  bool   // Body is not the client's own

	s        *Session
	r        *Decision
	claim    memory.Claim
	charged  int
	syntax   placeholder.Syntax // syntax for replacing placeholders in the body
	codings  []string           // of the body
	hash     bool               // the signature covers the body
	read     bool
	buffered bool // the body was read before the request was judged
	asks     bool // the request asks a model, and is metered
}

// Rewrites reports whether a request that was not refused must be changed or metered by [Session.Rewrite].
func (r *Decision) Rewrites() bool { return r.header.OnRequests().Rewrites() }

// Rewrite begins to change a request. If read is set, the caller must read the body, up to a byte more than [MaxBody]. This
// includes encoded bodies that must be decoded for the search: unless they are too large, no part is sent before it was
// searched. If refused is not nil, the decision refuses. buffer is from [Session.Buffer] if the body was read already, else nil.
func (s *Session) Rewrite(buffer *Rewriting, r *Decision, out Outgoing, coded bool) (w *Rewriting, read bool, refused *problem.Problem) {
	if w = buffer; w == nil {
		w = &Rewriting{s: s}
		w.claim.Open(s.Usage.Memory, memory.Buffers)
	}
	w.Outgoing, w.r = out, r
	if refused = w.beginMeter(); refused != nil {
		return w, false, refused
	}
	if signer := r.header.OnRequests().Signer; signer != nil {
		var err error
		if w.hash, err = signer.HashesBody(w.message()); err != nil {
			return w, false, w.refuse(err)
		}
	}
	if out.Length != 0 {
		w.syntax, w.codings = r.replacedIn(w.fieldValue("Content-Type"), w.fieldValue("Content-Encoding"))
	}
	w.read = out.Length != 0 && (w.buffered || w.hash || w.asks || w.syntax != placeholder.Opaque || coded && out.Length > 0 && out.Length <= MaxBody)
	return w, w.read && !w.buffered, nil
}

// replacedIn returns the syntax for replacing placeholders in a body, and its codings.
func (r *Decision) replacedIn(contentType, contentEncoding string) (placeholder.Syntax, []string) {
	syntax := placeholder.SyntaxOf(contentType)
	switch {
	case syntax == placeholder.Form && r.header.OnRequests().Places.Has(rule.InForm):
	case syntax == placeholder.JSON && r.header.OnRequests().Places.Has(rule.InJSON):
	default:
		return placeholder.Opaque, nil
	}
	codings, err := scrub.ParseCodings(contentEncoding)
	if err != nil {
		return placeholder.Opaque, nil
	}
	return syntax, codings
}

// fieldValue returns the value of a client's field, or "" if there are several.
func (w *Rewriting) fieldValue(name string) (v string) {
	n := 0
	for i := range w.Fields {
		if strings.EqualFold(w.Fields[i].Name, name) {
			v = w.Fields[i].Value
			n++
		}
	}
	if n > 1 {
		return ""
	}
	return v
}

// Add takes the next part of the body, and reports whether more is needed. The error is [memory.ErrFull].
func (w *Rewriting) Add(part []byte) (more bool, err error) {
	if need := len(w.Body) + len(part); 3*need > w.charged { // as read, as changed, as written
		grow := max(3*need, min(2*w.charged, 3*w.most())) - w.charged
		if !w.claim.Grow(grow) {
			return false, memory.ErrFull
		}
		w.charged += grow
	}
	w.Body = append(w.Body, part...)
	return len(w.Body) <= w.most(), nil
}

// most returns the length of the longest body that is read.
func (w *Rewriting) most() int {
	if w.asks {
		return MaxMetered
	}
	return MaxBody
}

// End changes the request, after the body was read if necessary; whole reports whether the body is complete. It uses the
// current values of secrets. If refused is not nil, the decision refuses.
func (w *Rewriting) End(ctx context.Context, whole bool) (refused *problem.Problem) {
	r := w.r
	r.capture = w.s.Usage.Capture.Load()
	w.Whole = whole && w.read
	if w.read { // reading may have taken long
		if !r.sameAsCurrent(w.s) {
			return w.refuse(errRuleChanged)
		}
		if err := r.refreshValues(ctx, w.s); err != nil {
			return w.refuse(err)
		}
	}
	for i := range w.Fields {
		w.Fields[i].Value = placeholder.SwapField(w.Fields[i].Name, w.Fields[i].Value, r.Swaps)
	}
	if err := w.setQuery(ctx); err != nil {
		return w.refuse(err)
	}
	if err := w.replacePlaceholders(ctx); err != nil {
		return w.refuse(err)
	}
	r.setScrub(w.s)
	if err := w.sign(ctx); err != nil {
		return w.refuse(err)
	}
	r.maskCaptured()
	return nil
}

// refreshValues refreshes all values that are sent with the request.
func (r *Decision) refreshValues(ctx context.Context, s *Session) (err error) {
	if err = r.takeValues(s); err != nil {
		return err
	}
	if err = r.setHeaders(ctx); err != nil {
		return err
	}
	if err = r.introduce(s); err != nil { // otherwise the box could send those headers itself
		return err
	}
	if r.identity, err = s.Core.identity(ctx, &r.values, r.header.OnConnections().Identity); err != nil {
		return err
	}
	r.Swaps, err = r.values.refreshed(ctx, r.header.OnRequests(), r.Swaps)
	return err
}

// errRuleChanged refuses a request whose rule was changed or removed in the meantime.
var errRuleChanged = errors.New("the rule of the host has changed since the request began")

// sameAsCurrent reports whether the current policy adds the same to the request as the one that judged it.
func (r *Decision) sameAsCurrent(s *Session) bool {
	c := s.Box.Policy.Load()
	if c == r.Policy || r.header.Pattern == (name.Pattern{}) { // the rule adds nothing
		return true
	}
	rule, d := c.HeaderRule(r.Request)
	return d.Reason == "" && rule.SendsAlike(&r.header)
}

// Stale returns an error if the request must not be sent because its rule was changed or removed, or is the fleet's and the fence is closed. The wait for a
// connection, or for a server that has vanished, may have been long.
func (r *Decision) Stale(s *Session) error {
	if err := r.checkFence(); err != nil {
		return err
	}
	if r.sameAsCurrent(s) {
		return nil
	}
	return errRuleChanged
}

// placeholderNow returns a placeholder of the rule if the current policy still has a value for it in the given places: a
// WebSocket may live much longer than its rule.
func (r *Decision) placeholderNow(s *Session, token string, places rule.Places) *rule.Placeholder {
	ph, c := r.header.OnRequests().Placeholder(token), s.Box.Policy.Load()
	if ph == nil || c == r.Policy {
		return ph
	}
	then, d := c.HeaderRule(r.Request)
	now := then.OnRequests().Placeholder(token)
	if d.Reason != "" || !then.OnRequests().Places.Has(places) || now == nil || !now.Equal(*ph) {
		return nil
	}
	return ph
}

// setQuery sets the query parameters of the rule, and replaces placeholders in the rest of the query.
func (w *Rewriting) setQuery(ctx context.Context) error {
	setter := w.r.header.OnRequests().Query
	if setter == nil {
		w.Target = placeholder.SwapTarget(w.Target, w.r.Swaps)
		return nil
	}
	target, own := setter.RemoveQuery(w.Target)
	if target != w.Target {
		if err := w.judgeAgain(target, own); err != nil {
			return err
		}
	}
	target, err := setter.SetQuery(ctx, &w.r.values, placeholder.SwapTarget(target, w.r.Swaps), w.r.addMaskText)
	if err != nil {
		return err
	}
	w.Target = target
	for _, name := range setter.Parameters() {
		w.r.noteChange("?" + name)
	}
	return nil
}

// judgeAgain judges the request with the changed query, because a rule may have allowed it for the removed parts. own are
// the client's values of the parameters that are set, which rules still see.
func (w *Rewriting) judgeAgain(target string, own []string) error {
	r := w.r
	_, query, _ := strings.Cut(target, "?")
	way := r.to.Routed
	way.Asked.Query = strings.Trim(strings.Join(own, "&")+"&"+query, "&")
	now := w.s.Core.Router.Reroute(r.Policy, w.s.Box, way)
	if why := way.OverruledBy(now); why != nil {
		return why
	}
	if err := now.Decision.Err(way.Asked); err != nil {
		return err
	}
	rule, d := r.Policy.HeaderRule(way.Asked)
	if d.Reason == "" && rule.OnRequests().Query != r.header.OnRequests().Query {
		d = policy.Decision{Reason: name.ReasonAmbiguousRequest, Rule: r.header.Pattern.String(), Version: r.Policy.Version()}
	}
	if d.Reason != "" {
		return d.Err(way.Asked)
	}
	r.to.Routed, r.Request.Query = way, way.Asked.Query
	return nil
}

// replacePlaceholders replaces the placeholders in a whole body. It fails if one is where no value is allowed.
func (w *Rewriting) replacePlaceholders(ctx context.Context) error {
	if !w.Whole || w.syntax == placeholder.Opaque {
		return nil
	}
	plain, fits, err := w.decoded(ctx)
	if err != nil || !fits {
		return err
	}
	body, err := placeholder.Replace(plain, w.syntax, func(tokens []string) ([]string, error) {
		values, err := w.r.valuesOf(ctx, w.s, tokens, 0)
		for _, v := range values {
			w.r.addMaskText(v)
		}
		return values, err
	})
	if err != nil || !body.Any() {
		return err
	}
	encoders := 0
	if len(w.codings) > 0 {
		encoders = scrub.Memory(w.codings)
	}
	if !w.claim.Grow(2*body.Size() + encoders) {
		return memory.ErrFull
	}
	defer w.claim.Shrink(encoders)
	if w.Body, err = scrub.Encoded(w.codings, body.Bytes()); err != nil {
		return err
	}
	w.Changed = true
	w.r.noteChange("body")
	return nil
}

// decoded returns the decoded body. fits is false if it is too large.
func (w *Rewriting) decoded(ctx context.Context) (plain []byte, fits bool, err error) {
	if len(w.codings) == 0 {
		return w.Body, true, nil
	}
	most := scrub.Memory(w.codings) + 2*MaxBody
	if !w.claim.Grow(most) {
		return nil, false, memory.ErrFull
	}
	defer w.claim.Shrink(scrub.Memory(w.codings))
	limit := placeholder.Expansion
	limit.Stop = ctx.Err
	return scrub.Decoded(w.codings, w.Body, MaxBody, limit)
}

// valuesOf returns the values of placeholders in the body or in a message, as given by places.
func (r *Decision) valuesOf(ctx context.Context, s *Session, tokens []string, places rule.Places) ([]string, error) {
	values, from := make([]string, 0, len(tokens)), &r.values
	if places.Has(rule.InWebSocket) { // long after the request
		if err := r.takeValues(s); err != nil {
			return nil, err
		}
	}
	for _, token := range tokens {
		ph := r.placeholderNow(s, token, places)
		if ph == nil {
			return nil, placeholder.ErrLate
		}
		v, err := ph.Bare(ctx, from)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	s.maskCaptured(values)
	return values, nil
}

// addMaskText adds a text to those masked in the response.
func (r *Decision) addMaskText(text string) {
	r.capture.Mask(scrub.Texts(text))
	if !r.header.Scrub {
		return
	}
	for _, t := range scrub.Texts(text) {
		if !slices.Contains(r.maskTexts, t) {
			r.maskTexts = append(r.maskTexts, t)
		}
	}
}

// noteChange records, for the log, a change of the request other than of headers.
func (r *Decision) noteChange(what string) {
	if !slices.Contains(r.changes, what) {
		r.changes = append(r.changes, what)
	}
}

// Close releases the memory of the body.
func (w *Rewriting) Close() {
	if w != nil {
		w.claim.Close()
	}
}

// refuse makes the decision refuse the request.
func (w *Rewriting) refuse(err error) *problem.Problem {
	r := w.r
	r.Set, r.Swaps, r.err, r.rule = nil, nil, err, r.header.Pattern.String()
	var unfit *rule.Refusal
	var denied *policy.DeniedError
	switch {
	case errors.As(err, &denied):
		refused := problem.Of(err)
		r.Refused, r.rule = &refused, denied.Decision.Rule
	case errors.As(err, &unfit):
		r.Refused = &problem.Problem{Status: unfit.Status, Reason: unfit.Reason, Detail: unfit.Detail}
	case errors.Is(err, errFenced):
		r.Refused = problem.Fenced(r.Request.Name.String(), r.rule)
	case errors.Is(err, memory.ErrFull):
		r.Refused, r.rule = NoMemory(), ""
	case errors.Is(err, placeholder.ErrMany):
		r.Refused, r.rule = BadRequest("The request holds too many placeholders."), ""
	case errors.Is(err, placeholder.ErrLate):
		r.Refused, r.rule = LeakProblem(), ""
	case errors.Is(err, scrub.ErrBody):
		r.Refused, r.rule = BadRequest("The body of the request is not valid in its content coding."), ""
	default:
		r.Refused = &problem.Problem{Status: http.StatusBadGateway, Reason: name.ReasonSecretUnavailable,
			Detail: "A secret that the gateway sets for this host is not available."}
	}
	r.Reason, r.Refused.Rule, r.Refused.Host = r.Refused.Reason, r.rule, r.Request.Name.String()
	return r.Refused
}
