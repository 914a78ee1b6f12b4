package e2b

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"boxgate/api/problem"
)

// network are the network options of a sandbox. Their meaning is that of [boxgate/policy/dialect.ParseE2B], which also checks them.
type network struct {
	AllowOut           []string             `json:"allowOut,omitempty"`
	DenyOut            []string             `json:"denyOut,omitempty"`
	Rules              map[string][]netRule `json:"rules,omitempty"`
	EgressProxy        map[string]string    `json:"egressProxy,omitempty"`
	AllowPublicTraffic *bool                `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    string               `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int                `json:"httpsPorts,omitempty"`
}

// netRule sets headers on the requests to a host.
type netRule struct {
	Transform struct {
		Headers map[string]string `json:"headers,omitempty"`
	} `json:"transform,omitzero"`
}

// networkUpdate replaces the egress rules of a sandbox. Absent fields are cleared.
type networkUpdate struct {
	AllowOut      []string             `json:"allowOut,omitempty"`
	DenyOut       []string             `json:"denyOut,omitempty"`
	Rules         map[string][]netRule `json:"rules,omitempty"`
	EgressProxy   map[string]string    `json:"egressProxy,omitempty"`
	AllowInternet *bool                `json:"allow_internet_access,omitempty"`
}

// own returns the policy, in E2B's own form, which boxgate's API reads as well, and header rules in boxgate's form. Both are empty for a
// sandbox without options: it gets the policy of the configuration.
func (n network) own(internet *bool, p *problem.List) (policy map[string]any, headers map[string]map[string]any) {
	policy = map[string]any{}
	if n.AllowOut != nil {
		policy["allowOut"] = n.AllowOut
	}
	if n.DenyOut != nil {
		policy["denyOut"] = n.DenyOut
	}
	if len(n.EgressProxy) > 0 {
		policy["egressProxy"] = n.EgressProxy
	}
	if internet != nil {
		policy["allow_internet_access"] = *internet
	}
	headers = map[string]map[string]any{}
	for host, list := range n.Rules {
		if set := headersOf("/network/rules/"+problem.EscapeKey(host), list, p); len(set) > 0 {
			headers[host] = map[string]any{"headers": set}
		}
	}
	return policy, headers
}

// headersOf returns the headers of a host in boxgate's form. All its rules apply, and later headers replace earlier ones of the same name
// in any case.
func headersOf(at string, rules []netRule, p *problem.List) map[string]any {
	set := map[string]any{}
	for i, rule := range rules {
		for _, name := range slices.Sorted(maps.Keys(rule.Transform.Headers)) {
			maps.DeleteFunc(set, func(other string, _ any) bool { return strings.EqualFold(other, name) })
			value, ok := valueOf(rule.Transform.Headers[name])
			if !ok {
				p.Add(at+"/"+strconv.Itoa(i)+"/transform/headers/"+problem.EscapeKey(name),
					"has a placeholder other than one ${e2b.secrets.NAME}: this gateway mints no workload tokens for header values; store a secret with Secret.create")
			}
			set[name] = value
		}
	}
	return set
}

// Placeholders in the value of a header.
const (
	placeholder       = "${e2b."
	secretPlaceholder = "${e2b.secrets."
)

// valueOf returns the value of a header in boxgate's form: a text, or a secret with the text before and after it.
// It returns false for a value with other placeholders, which would reach the server as they are.
func valueOf(text string) (value any, ok bool) {
	if !strings.Contains(text, placeholder) {
		return text, true
	}
	before, rest, ok := strings.Cut(text, secretPlaceholder)
	name, after, whole := strings.Cut(rest, "}")
	if !ok || !whole || strings.Contains(before, placeholder) || strings.Contains(after, placeholder) {
		return nil, false
	}
	fields := map[string]string{"secret": name}
	if before != "" {
		fields["prefix"] = before
	}
	if after != "" {
		fields["suffix"] = after
	}
	return fields, true
}

// newNetwork is the body of a change in boxgate's own API.
type newNetwork struct {
	NetworkPolicy map[string]any            `json:"network_policy"`
	AttachHeaders map[string]map[string]any `json:"attach_headers"`
}

// setNetwork replaces the egress rules of a sandbox in one transaction.
func (e *Endpoints) setNetwork(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body networkUpdate
	if err := e.decode(w, r, &body, false); err != nil {
		return 0, nil, err
	}
	id, err := idOf(r)
	if err != nil {
		return 0, nil, err
	}
	if body.AllowInternet == nil { // so that an update without rules is one in this dialect, and clears them
		body.AllowInternet = new(true)
	}
	var in newNetwork
	var p problem.List
	in.NetworkPolicy, in.AttachHeaders = network{AllowOut: body.AllowOut, DenyOut: body.DenyOut, Rules: body.Rules, EgressProxy: body.EgressProxy}.own(body.AllowInternet, &p)
	if err := p.Err(); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, inE2B(e.own(r, http.MethodPut, boxPath(id, "config", "network"), in, nil))
}
