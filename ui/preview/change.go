package preview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/observe"
	"boxgate/observe/lint"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Change is the preview of another policy.
type Change struct {
	Version uint64 // of the policy in force
	// Problems are the mistakes in the text. If there are any, the rest is not set.
	Problems []document.Problem
	Named    string             // the named policy that the box would follow
	Diff     []amend.Difference // of the texts
	Same     bool               // the text is that of the policy in force
	Replay   spec.Replay
	Lint     []lint.Finding
	Headers  []string // header rules that cover the gains
	Concerns []Concern
	Digest   string // of all of the above but the traffic and the findings

	body json.RawMessage
}

// Retype reports whether the person must type the name of the box.
func (c *Change) Retype() bool {
	return slices.ContainsFunc(c.Concerns, func(c Concern) bool { return c.Retype })
}

// Confirmed reports whether a digest is that of this preview.
func (c *Change) Confirmed(digest string) bool { return same(digest, c.Digest) }

// Check previews the text of a policy, in any form that the API reads, for the version that the person has edited. keep lets
// temporary entries go on that a text does not list itself. Errors are those of the API, other than problems of the text.
func Check(ctx context.Context, c Client, box, text string, version uint64, keep bool) (ch Change, err error) {
	now, err := Read(ctx, c, box)
	if err != nil {
		return ch, err
	}
	if ch.Version = now.Version; version != now.Version {
		return ch, &api.ResponseError{Status: http.StatusPreconditionFailed, Message: api.ErrPrecondition.Error()}
	}
	if ch.body, ch.Problems = bodyOfText(text, &now, keep); len(ch.Problems) > 0 {
		return ch, nil
	}
	err = c.DoIf(ctx, version, "POST", replayPath(box), ch.body, &ch.Replay)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusUnprocessableEntity {
		if ch.Problems = refused.Problems; len(ch.Problems) == 0 {
			ch.Problems = []document.Problem{{Pointer: refused.Pointer, Message: refused.Message}}
		}
		return ch, nil
	}
	if err != nil {
		return ch, err
	}
	next, err := ch.specOf(ctx, c, &now)
	if err != nil {
		return ch, err
	}
	ch.Headers = headersIn(ch.Replay.Authority)
	ch.concern(now.Spec, next)
	if err := ch.lint(ctx, c, box, next); err != nil {
		return ch, err
	}
	ch.Digest = digestOf(box, ch.Version, ch.body, ch.Headers, ch.Replay.Authority, ch.Concerns)
	return ch, nil
}

// bodyOfText returns the body of a request that makes a policy, or the problems of its text.
func bodyOfText(text string, now *State, keep bool) (json.RawMessage, []document.Problem) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil {
		var ps document.Problems
		if _, ok := document.Parse([]byte(text), &ps); !ok {
			return nil, ps.List
		}
		return nil, []document.Problem{{Message: "must be a JSON object"}}
	}
	if !keep || fields["leases"] != nil {
		return json.RawMessage(text), nil
	}
	var ps document.Problems
	if _, ok := document.Parse([]byte(text), &ps); !ok || len(ps.List) > 0 { // duplicate keys, which Marshal below would hide
		return nil, ps.List
	}
	leases, err := json.Marshal(now.kept())
	if err != nil {
		return nil, []document.Problem{{Message: err.Error()}}
	}
	fields["leases"] = leases
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, []document.Problem{{Message: err.Error()}}
	}
	return body, nil
}

// specOf returns the policy of the text, and fills in the difference of the texts.
func (c *Change) specOf(ctx context.Context, client Client, now *State) (next policy.Spec, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.body, &fields); err != nil {
		return next, err
	}
	delete(fields, "leases")
	delete(fields, "version")
	delete(fields, "warnings")
	text, err := json.Marshal(fields)
	if err != nil {
		return next, err
	}
	given, err := spec.ParsePolicy(text)
	if err != nil {
		return next, err
	}
	next, c.Named = given.Spec, given.Named
	if c.Named != "" {
		var named struct{ Policy policy.Spec }
		if err := client.Get(ctx, "/v2/box/settings/network-policies/"+c.Named, &named); err != nil {
			return next, err
		}
		next = named.Policy
	}
	c.Diff = amend.Diff(now.Spec, next)
	c.Same = len(c.Diff) == 0 && c.Named == now.Named
	return next, nil
}

// concern fills in the warnings for a person.
func (c *Change) concern(now, next policy.Spec) {
	if next.DefaultAllow() && !now.DefaultAllow() {
		c.Concerns = append(c.Concerns, Concern{"The policy allows everything that no list denies.", true})
	}
	for i := range c.Replay.Authority.Gained {
		if line := &c.Replay.Authority.Gained[i]; line.Wide {
			c.Concerns = append(c.Concerns, Concern{"Anybody can have a name or an address in it: " + LineText(line) + ".", true})
		}
	}
	for _, entry := range next.AllowedDomains {
		if p, err := name.ParsePattern(entry); err == nil && !slices.Contains(now.AllowedDomains, entry) {
			if concern, ok := suspicionOf(now, p); ok {
				c.Concerns = append(c.Concerns, concern)
			}
		}
	}
	const most = 20
	if more := len(c.Concerns) - most; more > 0 {
		c.Concerns = append(c.Concerns[:most], Concern{fmt.Sprintf("There are %d further concerns of these kinds.", more), true})
	}
}

// lint fills in the findings about the policy, with the traffic of the box if the gateway keeps it.
func (c *Change) lint(ctx context.Context, client Client, box string, next policy.Spec) error {
	var seen struct {
		Observations   []observe.Observation
		Overflow, Lost uint64
		Since          time.Time `json:"complete_since"`
	}
	err := client.Get(ctx, api.BoxPath(box, "egress/observations"), &seen)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusConflict { // the gateway keeps no traffic
		err = nil
	}
	c.Lint = lint.Check(next, observe.Summary{Observations: seen.Observations, Overflow: seen.Overflow, Lost: seen.Lost, Since: seen.Since}, time.Now())
	return err
}

// Apply makes the change that was previewed. If the policy has changed since, it stays as it is, and [Changed] is true of the error.
func (c *Change) Apply(ctx context.Context, client Client, box string) error {
	return client.DoIf(ctx, c.Version, "PUT", policyPath(box), c.body, nil)
}

// Text returns the text of a policy that a person edits: the form of the API, without leases.
func (s *State) Text() string {
	var edited any = s.Spec
	if s.Named != "" {
		edited = map[string]string{"named": s.Named}
	}
	text, err := json.MarshalIndent(edited, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}
