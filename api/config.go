package api

import (
	"encoding/json"
	"net/http"

	"boxgate/policy"
)

// policyView is a policy in force.
type policyView struct {
	policy.Spec
	Version  uint64        `json:"version" doc:"also the ETag"`
	Warnings []problemView `json:"warnings,omitempty"`
}

// policyBody describes a policy update; policy.ParseSpec reads it.
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
		return reply{}, invalid("/allow", "on a running box, transforms are set by PUT config/attach-headers; leave them out here")
	}
	state, err := a.Host.SetPolicy(r.Context(), box.ID, spec, match)
	if err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "user", "network policy set to %s, version %d", spec.Mode, state.Version)
	return viewPolicy(state), nil
}

// parsePolicy reads a policy in the dialect of this API, which always has a mode, or in that of Vercel Sandbox, which
// is a string or has allow or subnets, and may include header rules.
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

// takeVersion lets clients edit a policy that they read and send it back: its version becomes the precondition, its
// warnings are dropped. If-Match says the same, so the two must agree.
func takeVersion(data []byte, match *uint64) ([]byte, *uint64, error) {
	var any json.RawMessage
	if err := unmarshalStrict(data, &any); err != nil {
		return nil, nil, err
	}
	var fields map[string]json.RawMessage
	isObject := json.Unmarshal(data, &fields) == nil
	if !isObject || fields["version"] == nil && fields["warnings"] == nil {
		return data, match, nil // not an object (another dialect), or nothing to remove
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
