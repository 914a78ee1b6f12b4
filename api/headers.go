package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"boxgate/policy"
)

// headersView is a set of header rules as it may be shown: without values.
type headersView struct {
	AttachHeaders map[string][]string `json:"attach_headers" doc:"host pattern to header names"`
	Rules         map[string]ruleView `json:"rules" doc:"host pattern to what may be shown of its rule"`
	Version       uint64              `json:"version" doc:"also the ETag"`
	Warnings      []problemView       `json:"warnings,omitempty"`
}

// ruleView is one header rule without its values.
type ruleView struct {
	Headers      []headerView      `json:"headers"`
	Placeholders []placeholderView `json:"placeholders,omitempty"`
	Scrub        bool              `json:"scrub,omitempty"`
}

type headerView struct {
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty" doc:"the secret of the gateway's configuration that it comes from; absent for a literal"`
}

type placeholderView struct {
	Variable string `json:"variable"`
	Secret   string `json:"secret,omitempty" doc:"as for a header"`
}

// headerRules is the JSON of header rules, which policy.ParseHeaderRules reads: host pattern to a compact or a full entry.
type headerRules struct{ json.RawMessage }

// headersBody is a new set of header rules.
type headersBody struct {
	AttachHeaders headerRules `json:"attach_headers" doc:"host pattern to header names to values, or to an entry of the full form; values are never read back"`
}

// headerEntryBody and headerValueBody describe the full form of an entry.
type headerEntryBody struct {
	Headers      map[string]headerValueBody `json:"headers,omitempty"`
	Placeholders map[string]headerValueBody `json:"placeholders,omitempty" doc:"environment variable to the value that the gateway replaces its content with; no prefix or suffix"`
	Scrub        bool                       `json:"scrub,omitempty" doc:"mask the rule's secrets in responses"`
}

type headerValueBody struct {
	Secret string `json:"secret,omitempty" doc:"name of a secret in the gateway's configuration"`
	Prefix string `json:"prefix,omitempty" doc:"before the secret's value"`
	Suffix string `json:"suffix,omitempty" doc:"after the secret's value"`
	Value  string `json:"value,omitempty" doc:"a literal, instead of secret; a string instead of the object is one, too"`
}

func viewHeaders(s HeaderState) reply {
	view := headersView{
		AttachHeaders: map[string][]string{}, Rules: map[string]ruleView{}, Version: s.Version, Warnings: problemViews(s.Warnings),
	}
	for _, rule := range s.Rules {
		one := ruleView{Headers: []headerView{}, Scrub: rule.Scrub}
		names := []string{}
		for _, h := range rule.Headers { // sorted by name
			names = append(names, h.Name)
			one.Headers = append(one.Headers, headerView{h.Name, h.Source})
		}
		for _, p := range rule.Placeholders {
			one.Placeholders = append(one.Placeholders, placeholderView{p.Variable, p.Source})
		}
		view.AttachHeaders[rule.Pattern.String()], view.Rules[rule.Pattern.String()] = names, one
	}
	return reply{body: view, version: s.Version}
}

// readHeaders reads header rules: {"attach_headers": {…}}, as in a create and as read, or the inner object alone.
// removed collects the hosts that have null instead of a rule; if it is nil, null is refused.
func (a *API) readHeaders(w http.ResponseWriter, r *http.Request, removed *[]policy.Pattern) ([]policy.HeaderRule, *uint64, error) {
	data, err := a.readBody(w, r)
	if err != nil {
		return nil, nil, err
	}
	match, err := ifMatch(r)
	if err != nil {
		return nil, nil, err
	}
	at := ""
	var wrapped map[string]json.RawMessage
	if json.Unmarshal(data, &wrapped) == nil && wrapped["attach_headers"] == nil {
		err = unmarshalStrict(data, &headerRules{})
	} else {
		var body headersBody
		err = unmarshalStrict(data, &body)
		at, data = "/attach_headers", body.AttachHeaders.RawMessage
	}
	if err != nil {
		return nil, nil, err
	}
	var p problems
	if removed != nil {
		data, *removed = takeNulls(data, &p)
	}
	rules, err := policy.ParseHeaderRules(data, a.HasSecret)
	if err := p.merge("", err); err != nil {
		return nil, nil, err
	}
	var q problems
	return rules, match, errors.Join(q.merge(at, p.err()), q.err())
}

// takeNulls removes from a set of rules the hosts that have null instead of a rule.
func takeNulls(data []byte, p *problems) ([]byte, []policy.Pattern) {
	var entries map[string]json.RawMessage
	if json.Unmarshal(data, &entries) != nil {
		return data, nil // the parser reports what is wrong
	}
	var removed []policy.Pattern
	for host, entry := range entries {
		if string(entry) != "null" {
			continue
		}
		pattern, err := policy.ParsePattern(host)
		if err != nil {
			p.add("/"+escapePointer(host), "%v", err)
		}
		removed = append(removed, pattern)
		delete(entries, host)
	}
	rest, err := json.Marshal(entries)
	if err != nil { // what was decoded can be encoded
		return data, nil
	}
	return rest, removed
}

func (a *API) getHeaders(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	state, err := a.Host.Headers(r.Context(), box.ID)
	if err != nil {
		return reply{}, err
	}
	return viewHeaders(state), nil
}

func (a *API) putHeaders(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	rules, match, err := a.readHeaders(w, r, nil)
	if err != nil {
		return reply{}, err
	}
	state, err := a.Host.SetHeaders(r.Context(), box.ID, rules, match)
	if err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "user", "attach headers replaced, %d hosts", len(rules))
	return viewHeaders(state), nil
}

func (a *API) getGlobalHeaders(_ http.ResponseWriter, r *http.Request) (reply, error) {
	state, err := a.Host.GlobalHeaders(r.Context())
	if err != nil {
		return reply{}, err
	}
	return viewHeaders(state), nil
}

func (a *API) putGlobalHeaders(w http.ResponseWriter, r *http.Request) (reply, error) {
	rules, match, err := a.readHeaders(w, r, nil)
	if err != nil {
		return reply{}, err
	}
	state, err := a.Host.SetGlobalHeaders(r.Context(), rules, match)
	if err != nil {
		return reply{}, err
	}
	return viewHeaders(state), nil
}

func (a *API) patchHeaders(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return a.patch(w, r, headerStore{
		get: func(ctx context.Context) (HeaderState, error) { return a.Host.Headers(ctx, box.ID) },
		set: func(ctx context.Context, rules []policy.HeaderRule, match *uint64) (HeaderState, error) {
			state, err := a.Host.SetHeaders(ctx, box.ID, rules, match)
			if err == nil {
				a.history.log(box.ID, "info", "user", "attach headers changed, %d hosts", len(rules))
			}
			return state, err
		},
	})
}

func (a *API) patchGlobalHeaders(w http.ResponseWriter, r *http.Request) (reply, error) {
	return a.patch(w, r, headerStore{get: a.Host.GlobalHeaders, set: a.Host.SetGlobalHeaders})
}

// headerStore reads and replaces one set of header rules.
type headerStore struct {
	get func(context.Context) (HeaderState, error)
	set func(context.Context, []policy.HeaderRule, *uint64) (HeaderState, error)
}

// patch changes the rules of some hosts and keeps the others, whose values the caller does not have. Without If-Match
// it retries for as long as other clients change the rules in between. It ends, because each retry means that one of
// them has succeeded.
func (a *API) patch(w http.ResponseWriter, r *http.Request, s headerStore) (reply, error) {
	var removed []policy.Pattern
	changed, match, err := a.readHeaders(w, r, &removed)
	if err != nil {
		return reply{}, err
	}
	for {
		now, err := s.get(r.Context())
		if err != nil {
			return reply{}, err
		}
		if match != nil && *match != now.Version {
			return reply{}, ErrPrecondition
		}
		rules, unknown := policy.WithoutHosts(now.Rules, removed)
		if len(unknown) > 0 {
			return reply{}, Errorf(ErrNotFound, "there is no header rule for %q", unknown[0])
		}
		rules = policy.MergeHeaders(rules, changed)
		if len(rules) > policy.MaxHeaderHosts {
			return reply{}, invalid("", "there would be rules for %d hosts; the limit is %d", len(rules), policy.MaxHeaderHosts)
		}
		if n := policy.CountPlaceholders(rules); n > policy.MaxPlaceholders {
			return reply{}, invalid("", "there would be %d placeholders; the limit is %d", n, policy.MaxPlaceholders)
		}
		state, err := s.set(r.Context(), rules, &now.Version)
		if errors.Is(err, ErrPrecondition) && match == nil && r.Context().Err() == nil {
			continue
		}
		if err != nil {
			return reply{}, err
		}
		return viewHeaders(state), nil
	}
}
