package rules

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

// This part reads and replaces the policy and the header rules of a box in one call. A request is judged by the old pair or by the
// new one. The caller needs the permissions of both changes.

const networkPath = "/v2/box/{id}/config/network"

// The endpoints that change one of the two alone.
const (
	setPolicyID  = "setPolicy"
	setHeadersID = "setHeaders"
)

// networkBody is a new policy with new header rules.
type networkBody struct {
	NetworkPolicy spec.Policy  `json:"network_policy" doc:"as in PUT config/network-policy. A version in it is that of the policy alone"`
	AttachHeaders spec.Headers `json:"attach_headers,omitempty" doc:"as in PUT config/attach-headers; {} for no rules. May be absent only if network_policy is in a dialect that sets headers itself"`
}

// networkView is the current policy of a box with its header rules.
type networkView struct {
	NetworkPolicy  policyView          `json:"network_policy"`
	AttachHeaders  map[string][]string `json:"attach_headers" doc:"host pattern to header names"`
	Rules          map[string]ruleView `json:"rules" doc:"host pattern to what may be shown of its rule"`
	HeadersVersion uint64              `json:"headers_version" doc:"of the header rules; the ETag is both versions, such as \"3.1\""`
	Warnings       []problem.View      `json:"warnings,omitempty"`
}

// setNetworkView describes the answers of setNetwork: policy and header rules in force, or with dry_run the effect of the change.
type setNetworkView struct{}

// Forms describes the answers.
func (setNetworkView) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[networkView](), reflect.TypeFor[spec.Replay]()}
}

func (e *Endpoints) networkRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: networkPath, ID: "getNetwork", Versioned: true, Summary: "The policy and the header rules in force, without values; both versions as ETag", Response: reflect.TypeFor[networkView](), Handle: e.getNetwork},
		{Method: "PUT", Path: networkPath, ID: "setNetwork", Versioned: true, Summary: "Replace the policy and the header rules together: no request is judged by one of the new and one of the old. Answers once both are in force everywhere; with dry_run=true as replayPolicy, without a change", Query: reflect.TypeFor[putPolicyQuery](), Request: reflect.TypeFor[networkBody](), Example: `{"network_policy":{"mode":"custom","allowed_domains":["api.example.com"]},"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[setNetworkView](), Handle: e.putNetwork},
	}
}

func viewNetwork(s api.PolicyState) rest.Reply {
	view := networkView{NetworkPolicy: policyView{s.Spec, s.Named, s.Version, viewLeases(s.Leases), nil}, Warnings: problem.Views(s.Warnings)}
	headers := headersViewOf(*s.Headers)
	view.AttachHeaders, view.Rules, view.HeadersVersion = headers.AttachHeaders, headers.Rules, headers.Version
	return rest.Reply{Body: view, Tag: networkTag(s.Version, s.Headers.Version)}
}

// networkTag returns the entity tag of a policy and header rules, without quotes.
func networkTag(policy, headers uint64) string {
	return strconv.FormatUint(policy, 10) + "." + strconv.FormatUint(headers, 10)
}

// ifMatchNetwork reads If-Match: the versions of the policy and of the header rules that must be in force; nil: any.
func ifMatchNetwork(r *http.Request) (policy, headers *uint64, err error) {
	tag, err := rest.IfMatchTag(r)
	if err != nil || tag == "" {
		return nil, nil, err
	}
	left, right, _ := strings.Cut(tag, ".")
	p, errP := strconv.ParseUint(left, 10, 64)
	h, errH := strconv.ParseUint(right, 10, 64)
	if errP != nil || errH != nil {
		return nil, nil, problem.Refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3.1"`)
	}
	return &p, &h, nil
}

func (e *Endpoints) getNetwork(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := e.Host.Network(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return viewNetwork(state), nil
}

// givenNetwork reads a policy with header rules from the body of a request, with the version of the policy that it is for.
func (e *Endpoints) givenNetwork(w http.ResponseWriter, r *http.Request) (set api.PolicyChange, match *uint64, err error) {
	var body networkBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return set, nil, err
	}
	match, matchHeaders, err := ifMatchNetwork(r)
	if err != nil {
		return set, nil, err
	}
	if len(body.NetworkPolicy.RawMessage) == 0 {
		return set, nil, problem.Invalid("/network_policy", "is missing")
	}
	var p problem.List
	set, match, given, err := policyChange(body.NetworkPolicy.RawMessage, match)
	if err := p.Merge("/network_policy", err); err != nil {
		return set, nil, err
	}
	rules := given.Headers
	switch {
	case len(body.AttachHeaders.RawMessage) > 0:
		own, err := policy.ParseHeaderRules(body.AttachHeaders.RawMessage, e.Secrets.Finder(r.Context()))
		if err := p.Merge("/attach_headers", err); err != nil {
			return set, nil, err
		}
		rules = joinedRules(own, given.Headers, &p)
	case p.Err() == nil && !given.SetsHeaders:
		p.Add("/attach_headers", "is missing; give {} for a box without header rules, or change the policy alone by PUT config/network-policy")
	}
	if err := p.Err(); err != nil {
		return set, nil, err
	}
	set.Headers = &api.HeaderChange{Rules: rules, IfMatch: matchHeaders}
	return set, match, nil
}

// joinedRules returns the header rules of a request with the ones of its policy. A host that has both is a problem.
func joinedRules(own, ofPolicy []policy.HeaderRule, p *problem.List) []policy.HeaderRule {
	for _, rule := range ofPolicy {
		if slices.ContainsFunc(own, rule.SameHosts) {
			p.Add("/network_policy", "%q has headers here and in attach_headers; give them in one place", rule.Pattern)
		}
	}
	rules := slices.Concat(own, ofPolicy)
	if n := policy.CountHosts(rules); n > policy.MaxHeaderHosts {
		p.Add("/attach_headers", "with the ones of network_policy there are %d hosts; the limit is %d", n, policy.MaxHeaderHosts)
	}
	return rules
}

// mayChangeHeaders refuses header rules beside a policy unless the caller may also change them alone.
func mayChangeHeaders(r *http.Request, rules []policy.HeaderRule) error {
	if err := access.May(r.Context(), setHeadersID); err != nil {
		return err
	}
	return access.Rules(r.Context(), rules)
}

func (e *Endpoints) putNetwork(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	if err := access.May(r.Context(), setPolicyID); err != nil {
		return rest.Reply{}, err
	}
	reply, err := e.replace(w, r, e.givenNetwork, viewNetwork)
	reply.Version = 0 // of the policy alone, in the answer to dry_run, which no If-Match of this resource takes
	return reply, err
}

// policyChange reads a change of a policy from a document, with the version that it is for. given has the header rules of another
// dialect, which are not in the change.
func policyChange(data []byte, match *uint64) (set api.PolicyChange, _ *uint64, given spec.GivenPolicy, err error) {
	fields, err := membersOf(data)
	if err != nil {
		return set, nil, given, err
	}
	if fields.text, match, err = fields.takeVersion(match); err != nil {
		return set, nil, given, err
	}
	if data, set.Keep, err = fields.takeLeases(); err != nil {
		return set, nil, given, err
	}
	if given, err = spec.ParsePolicy(data); err != nil {
		return set, nil, given, err
	}
	set.Spec, set.Named = given.Spec, given.Named
	return set, match, given, nil
}

// replace replaces the policy of a box, and its header rules if the body that given reads has some, or compares the change with
// the policy in force (dry_run). It answers in the form of view.
func (e *Endpoints) replace(w http.ResponseWriter, r *http.Request, given func(http.ResponseWriter, *http.Request) (api.PolicyChange, *uint64, error), view func(api.PolicyState) rest.Reply) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q putPolicyQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	set, match, err := given(w, r)
	if err == nil && set.Headers != nil {
		err = mayChangeHeaders(r, set.Headers.Rules)
	}
	switch {
	case err != nil:
		return rest.Reply{}, err
	case q.DryRun:
		reply, err := e.compare(r, box.ID, q.Since, 0, set, match)
		reply.Change = &rest.Change{Box: box.ID, What: map[string]bool{"dry_run": true}}
		return reply, err
	case q.Since != "":
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "since" needs dry_run=true`)
	}
	state, err := e.Host.SetPolicy(r.Context(), box.ID, set, match)
	if err != nil {
		return rest.Reply{}, err
	}
	what := string(state.Spec.Mode)
	if state.Named != "" {
		what = fmt.Sprintf("the named policy %q", state.Named)
	}
	if state.Headers != nil {
		what += fmt.Sprintf(" with attach headers for %d hosts", policy.CountHosts(state.Headers.Rules))
	}
	e.History.Log(box.ID, "info", "user", "network policy set to %s, version %d", what, state.Version)
	reply := view(state)
	reply.Change = change.OfPolicy(box.ID, state)
	return reply, nil
}
