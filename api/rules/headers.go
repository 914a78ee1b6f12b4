package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// headersView is a set of header rules without values.
type headersView struct {
	AttachHeaders map[string][]string `json:"attach_headers" doc:"host pattern to header names"`
	Rules         map[string]ruleView `json:"rules" doc:"host pattern to what may be shown of its rule"`
	Version       uint64              `json:"version" doc:"also the ETag"`
	Fleet         bool                `json:"fleet,omitempty" doc:"the rules of the fleet, which each of its hosts applies; absent: of this host alone"`
	Warnings      []problem.View      `json:"warnings,omitempty"`
}

// ruleView is the rule of one host pattern without its values: an entry, or its alternatives.
type ruleView struct {
	headerEntryView
	Alternatives []headerEntryView `json:"alternatives,omitempty" doc:"in the order in which they are tried, if there are several; the other fields are empty then"`
}

// headerEntryView is one header rule without its values.
type headerEntryView struct {
	entryHead
	sent []any // an object for each effect that sends values in requests
	entryTail
	effects []any // an object for each other effect
}

// entryHead has the members of an entry before the ones of kinds.
type entryHead struct {
	Match *match.Match `json:"match,omitempty" doc:"the requests that it is for; absent: every one"`
}

// entryTail has the members of an entry after the ones of kinds that send values in requests.
type entryTail struct {
	Scrub bool `json:"scrub,omitempty"`
	Deny  bool `json:"deny,omitempty"`
}

// Members returns the members that the kinds of rules add.
func (headerEntryView) Members() []reflect.StructField { return kinds.Views() }

// MarshalJSON adds the members of kinds.
func (v headerEntryView) MarshalJSON() ([]byte, error) {
	return joined(slices.Concat([]any{v.entryHead}, v.sent, []any{v.entryTail}, v.effects)...)
}

// MarshalJSON writes the only entry of a host, or its alternatives.
func (v ruleView) MarshalJSON() ([]byte, error) {
	if len(v.Alternatives) > 0 {
		whole := viewRule(policy.HeaderRule{})
		whole.effects = append(whole.effects, map[string]any{"alternatives": v.Alternatives})
		return whole.MarshalJSON()
	}
	return v.headerEntryView.MarshalJSON()
}

// joined returns a JSON object with the members of several objects.
func joined(objects ...any) ([]byte, error) {
	out := []byte{'{'}
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if members, ok := bytes.CutPrefix(text, []byte{'{'}); ok && len(members) > 1 { // neither null nor empty
			out = append(append(out, members[:len(members)-1]...), ',')
		}
	}
	return append(out[:len(out)-1], '}'), nil // some kind is always shown
}

// headersBody is a new set of header rules.
type headersBody struct {
	AttachHeaders spec.Headers `json:"attach_headers" doc:"host pattern to header names to values, or to an entry of the full form; values are never read back"`
}

func viewHeaders(s api.HeaderState) rest.Reply {
	return rest.Reply{Body: headersViewOf(s), Version: s.Version}
}

// headersViewOf returns header rules without their values.
func headersViewOf(s api.HeaderState) headersView {
	view := headersView{
		AttachHeaders: map[string][]string{}, Rules: map[string]ruleView{}, Version: s.Version, Fleet: s.Fleet, Warnings: problem.Views(s.Warnings),
	}
	for _, r := range s.Rules { // alternatives are adjacent
		host, entry := r.Pattern.String(), viewRule(r)
		whole, several := view.Rules[host]
		switch {
		case !several:
			whole.headerEntryView = entry
		case whole.Alternatives == nil:
			whole.Alternatives, whole.headerEntryView = []headerEntryView{whole.headerEntryView, entry}, headerEntryView{}
		default:
			whole.Alternatives = append(whole.Alternatives, entry)
		}
		view.Rules[host] = whole
		names := append(view.AttachHeaders[host], headerNames(r)...)
		slices.Sort(names)
		view.AttachHeaders[host] = append([]string{}, slices.Compact(names)...)
	}
	return view
}

// viewRule returns a rule without its values.
func viewRule(r policy.HeaderRule) headerEntryView {
	one := headerEntryView{entryHead: entryHead{Match: r.Match}, entryTail: entryTail{Scrub: r.Scrub, Deny: r.Deny}}
	for _, k := range kinds.All {
		always, ok := k.(rule.AlwaysShown)
		if ok && !slices.ContainsFunc(r.Effects, func(e rule.Effect) bool { return e.Key() == k.Key() }) {
			one.sent = append(one.sent, map[string]any{k.Key(): always.ShowNone()})
		}
	}
	for _, e := range r.Effects { // sorted by key
		shown := map[string]any{e.Key(): e.Show()}
		if w, ok := e.(rule.WideEffect); ok {
			maps.Copy(shown, w.Members())
		}
		if _, sends := e.(rule.Sender); sends {
			one.sent = append(one.sent, shown)
		} else {
			one.effects = append(one.effects, shown)
		}
	}
	return one
}

// headerNames returns the names of the header fields that a rule sets.
func headerNames(r policy.HeaderRule) []string {
	setter := rule.Requests(r.Effects).Headers
	if setter == nil {
		return nil
	}
	set, _ := setter.HeaderNames()
	return set
}

// readHeaders reads header rules: {"attach_headers": {…}}, as in a create and as read, or the inner object alone.
// removed collects the hosts that have null instead of a rule; if it is nil, null is refused.
func (e *Endpoints) readHeaders(w http.ResponseWriter, r *http.Request, removed *[]name.Pattern) ([]policy.HeaderRule, *uint64, error) {
	data, err := e.Bodies.Read(w, r)
	if err != nil {
		return nil, nil, err
	}
	match, err := rest.IfMatch(r)
	if err != nil {
		return nil, nil, err
	}
	at := ""
	var wrapped map[string]json.RawMessage
	if json.Unmarshal(data, &wrapped) == nil && wrapped["attach_headers"] == nil {
		err = strict.Unmarshal(data, &spec.Headers{})
	} else {
		var body headersBody
		err = strict.Unmarshal(data, &body)
		at, data = "/attach_headers", body.AttachHeaders.RawMessage
	}
	if err != nil {
		return nil, nil, err
	}
	var p problem.List
	if removed != nil {
		data, *removed = takeNulls(data, &p)
	}
	rules, err := policy.ParseHeaderRules(data, e.Secrets.Finder(r.Context()))
	if err := p.Merge("", err); err != nil {
		return nil, nil, err
	}
	if err := access.Rules(r.Context(), rules); err != nil {
		return nil, nil, err
	}
	var q problem.List
	return rules, match, errors.Join(q.Merge(at, p.Err()), q.Err())
}

// takeNulls removes from a set of rules the hosts that have null instead of a rule.
func takeNulls(data []byte, p *problem.List) ([]byte, []name.Pattern) {
	var entries map[string]json.RawMessage
	if json.Unmarshal(data, &entries) != nil {
		return data, nil // the parser reports the mistake
	}
	var removed []name.Pattern
	for host, entry := range entries {
		if string(entry) != "null" {
			continue
		}
		pattern, err := name.ParsePattern(host)
		if err != nil {
			p.Add("/"+problem.EscapeKey(host), "%v", err)
		}
		removed = append(removed, pattern)
		delete(entries, host)
	}
	rest, err := json.Marshal(entries)
	if err != nil { // decoded JSON can be encoded
		return data, nil
	}
	return rest, removed
}

func (e *Endpoints) getHeaders(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := e.Host.Headers(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return viewHeaders(state), nil
}

func (e *Endpoints) putHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	rules, match, err := e.readHeaders(w, r, nil)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := e.Host.SetHeaders(r.Context(), box.ID, rules, match)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "attach headers replaced, %d hosts", policy.CountHosts(rules))
	return changedHeaders(box.ID, state), nil
}

func (e *Endpoints) getGlobalHeaders(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.globalStore(r)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := s.get(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	return viewHeaders(state), nil
}

func (e *Endpoints) putGlobalHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.globalStore(r)
	if err != nil {
		return rest.Reply{}, err
	}
	rules, match, err := e.readHeaders(w, r, nil)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := s.set(r.Context(), rules, match)
	if err != nil {
		return rest.Reply{}, err
	}
	return changedHeaders("", state), nil
}

// changedHeaders returns the answer to a change of header rules.
func changedHeaders(id policy.BoxID, s api.HeaderState) rest.Reply {
	reply := viewHeaders(s)
	reply.Change = change.OfHeaders(id, s)
	return reply
}

func (e *Endpoints) patchHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.patch(w, r, headerStore{
		box: box.ID,
		get: func(ctx context.Context) (api.HeaderState, error) { return e.Host.Headers(ctx, box.ID) },
		set: func(ctx context.Context, rules []policy.HeaderRule, match *uint64) (api.HeaderState, error) {
			state, err := e.Host.SetHeaders(ctx, box.ID, rules, match)
			if err == nil {
				e.History.Log(box.ID, "info", "user", "attach headers changed, %d hosts", policy.CountHosts(rules))
			}
			return state, err
		},
	})
}

func (e *Endpoints) patchGlobalHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.globalStore(r)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.patch(w, r, s)
}

// globalQuery selects the global rules of the fleet.
type globalQuery struct {
	Fleet bool `json:"fleet,omitempty" doc:"the rules of the fleet, for the boxes of all its hosts, instead of the rules of this host"`
}

// globalStore returns the global rules of this host, or of the fleet.
func (e *Endpoints) globalStore(r *http.Request) (headerStore, error) {
	var q globalQuery
	if err := rest.Query(r, &q); err != nil {
		return headerStore{}, err
	}
	if q.Fleet {
		return headerStore{get: e.Host.FleetHeaders, set: e.Host.SetFleetHeaders}, nil
	}
	return headerStore{get: e.Host.GlobalHeaders, set: e.Host.SetGlobalHeaders}, nil
}

// headerStore reads and replaces one set of header rules.
type headerStore struct {
	box policy.BoxID // "": the global rules
	get func(context.Context) (api.HeaderState, error)
	set func(context.Context, []policy.HeaderRule, *uint64) (api.HeaderState, error)
}

// patch changes the rules of some hosts and keeps the others, whose values the caller does not have. Without If-Match
// it retries for as long as other clients change the rules in between. It ends, because each retry means that one of
// them has succeeded.
func (e *Endpoints) patch(w http.ResponseWriter, r *http.Request, s headerStore) (rest.Reply, error) {
	var removed []name.Pattern
	changed, match, err := e.readHeaders(w, r, &removed)
	if err != nil {
		return rest.Reply{}, err
	}
	for {
		now, err := s.get(r.Context())
		if err != nil {
			return rest.Reply{}, err
		}
		if match != nil && *match != now.Version {
			return rest.Reply{}, api.ErrPrecondition
		}
		rules, unknown := policy.WithoutHosts(now.Rules, removed)
		if len(unknown) > 0 {
			return rest.Reply{}, api.Errorf(api.ErrNotFound, "there is no header rule for %q", unknown[0])
		}
		rules = policy.MergeHeaders(rules, changed)
		if n := policy.CountHosts(rules); n > policy.MaxHeaderHosts {
			return rest.Reply{}, problem.Invalid("", "there would be rules for %d hosts; the limit is %d", n, policy.MaxHeaderHosts)
		}
		if n := policy.CountPlaceholders(rules); n > policy.MaxPlaceholders {
			return rest.Reply{}, problem.Invalid("", "there would be %d placeholders; the limit is %d", n, policy.MaxPlaceholders)
		}
		state, err := s.set(r.Context(), rules, &now.Version)
		if errors.Is(err, api.ErrPrecondition) && match == nil && r.Context().Err() == nil {
			continue
		}
		if err != nil {
			return rest.Reply{}, err
		}
		return changedHeaders(s.box, state), nil
	}
}
