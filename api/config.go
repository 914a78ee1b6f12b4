package api

import (
	"encoding/json"
	"net/http"
	"slices"

	"boxgate/policy"
)

// policyView is a policy in force.
type policyView struct {
	policy.Spec
	Version  uint64        `json:"version" doc:"also the ETag"`
	Warnings []problemView `json:"warnings,omitempty"`
}

// policyBody is what a policy update is described as; policy.ParseSpec reads it.
type policyBody struct {
	policy.Spec
	Version uint64 `json:"version,omitempty" doc:"if given, the version that must be in force, as with If-Match"`
}

func viewPolicy(s PolicyState) reply {
	return reply{body: policyView{s.Spec, s.Version, problemViews(s.Warnings)}, version: s.Version}
}

func (a *API) getPolicy(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	state, err := a.Host.Policy(r.Context(), box.ID)
	if err != nil {
		return reply{}, err
	}
	return viewPolicy(state), nil
}

func (a *API) putPolicy(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	data, err := a.readBody(w, r)
	if err != nil {
		return reply{}, err
	}
	match, err := ifMatch(r)
	if err != nil {
		return reply{}, err
	}
	data, match, err = takeVersion(data, match)
	if err != nil {
		return reply{}, err
	}
	spec, headers, err := parsePolicy(data)
	if err != nil {
		return reply{}, err
	}
	if len(headers) > 0 {
		return reply{}, invalid("/allow", "transforms are set by PUT config/attach-headers on a box that runs; leave them out here")
	}
	state, err := a.Host.SetPolicy(r.Context(), box.ID, spec, match)
	if err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "user", "network policy set to %s, version %d", spec.Mode, state.Version)
	return viewPolicy(state), nil
}

// parsePolicy reads a policy in the dialect of this API, which always has a mode, or in that of Vercel Sandbox, which is
// a string or has allow or subnets; that one may bring header rules along.
func parsePolicy(data []byte) (policy.Spec, map[string]map[string]string, error) {
	var text string
	var fields map[string]json.RawMessage
	isText := json.Unmarshal(data, &text) == nil && string(data) != "null"
	if !isText && (json.Unmarshal(data, &fields) != nil || fields["mode"] != nil || fields["allow"] == nil && fields["subnets"] == nil) {
		spec, err := policy.ParseSpec(data)
		return spec, nil, err
	}
	return policy.ParseVercel(data)
}

// takeVersion lets a policy that was read be edited and sent back: its version becomes the precondition, its warnings
// are left behind. If-Match says the same thing, so the two must agree.
func takeVersion(data []byte, match *uint64) ([]byte, *uint64, error) {
	var any json.RawMessage
	if err := unmarshalStrict(data, &any); err != nil {
		return nil, nil, err
	}
	var fields map[string]json.RawMessage
	isObject := json.Unmarshal(data, &fields) == nil
	if !isObject || fields["version"] == nil && fields["warnings"] == nil {
		return data, match, nil // not an object (another dialect), or nothing to take out
	}
	if raw := fields["version"]; raw != nil {
		var version uint64
		if string(raw) == "null" || json.Unmarshal(raw, &version) != nil {
			return nil, nil, invalid("/version", "must be the version that was read")
		}
		if match != nil && *match != version {
			return nil, nil, ErrPrecondition
		}
		match = &version
	}
	delete(fields, "version")
	delete(fields, "warnings")
	rest, err := json.Marshal(fields)
	return rest, match, err
}

// headersView is a set of header rules as it may be shown: no values.
type headersView struct {
	AttachHeaders map[string][]string `json:"attach_headers" doc:"host pattern to header names"`
	Version       uint64              `json:"version" doc:"also the ETag"`
	Warnings      []problemView       `json:"warnings,omitempty"`
}

// headersBody is a new set of header rules.
type headersBody struct {
	AttachHeaders *map[string]map[string]string `json:"attach_headers" doc:"host pattern to header names to values; values are never read back"`
}

func viewHeaders(s HeaderState) reply {
	view := headersView{AttachHeaders: map[string][]string{}, Version: s.Version, Warnings: problemViews(s.Warnings)}
	for _, rule := range s.Rules {
		names := []string{}
		for _, h := range rule.Headers {
			names = append(names, h.Name)
		}
		slices.Sort(names)
		view.AttachHeaders[rule.Pattern.String()] = names
	}
	return reply{body: view, version: s.Version}
}

// readHeaders reads new header rules: {"attach_headers": {…}}, as in a create and as read, or the inner object alone.
func (a *API) readHeaders(w http.ResponseWriter, r *http.Request) ([]policy.HeaderRule, *uint64, error) {
	data, err := a.readBody(w, r)
	if err != nil {
		return nil, nil, err
	}
	match, err := ifMatch(r)
	if err != nil {
		return nil, nil, err
	}
	var wrapped map[string]json.RawMessage
	if json.Unmarshal(data, &wrapped) == nil && wrapped["attach_headers"] == nil {
		var rules map[string]map[string]string
		if err := unmarshalStrict(data, &rules); err != nil {
			return nil, nil, err
		}
		parsed, err := policy.ParseHeaders(rules)
		return parsed, match, err
	}
	var body headersBody
	if err := unmarshalStrict(data, &body); err != nil {
		return nil, nil, err
	}
	var p problems
	parsed, err := policy.ParseHeaders(*body.AttachHeaders)
	if err := p.merge("/attach_headers", err); err != nil {
		return nil, nil, err
	}
	return parsed, match, p.err()
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
	rules, match, err := a.readHeaders(w, r)
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
	rules, match, err := a.readHeaders(w, r)
	if err != nil {
		return reply{}, err
	}
	state, err := a.Host.SetGlobalHeaders(r.Context(), rules, match)
	if err != nil {
		return reply{}, err
	}
	return viewHeaders(state), nil
}
