package dialect

import (
	"encoding/json"
	"slices"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/header"
)

// Dialect is a form of policies.
type Dialect string

// The dialects.
const (
	Boxgate Dialect = "boxgate" // of this API: Upstash Box's form, with header rules in another member
	Vercel  Dialect = "vercel"  // see [ParseVercel]
	E2B     Dialect = "e2b"     // see [ParseE2B]
	Daytona Dialect = "daytona" // see [ParseDaytona]
)

// Document is a policy with header rules.
type Document struct {
	NetworkPolicy policy.Spec    `json:"network_policy"`
	AttachHeaders map[string]any `json:"attach_headers,omitempty"`
}

// Convert translates a policy from one dialect to another, with the values of its header rules. The error is an *[document.InvalidError]
// that lists the mistakes in the document, or the parts that the other dialect cannot express.
func Convert(data []byte, from, to Dialect) ([]byte, error) {
	spec, rules, err := readDialect(data, from)
	if err != nil {
		return nil, err
	}
	if _, err := policy.Compile(spec, policy.Options{Version: 1, Headers: rules}); err != nil {
		return nil, err
	}
	var out any
	var ps document.Problems
	switch to {
	case Boxgate:
		out = Document{spec, policy.WriteHeaderRules(rules)}
	case Vercel:
		out = writeVercel(spec, rules, &ps)
	case E2B:
		out = writeE2B(spec, rules, &ps)
	case Daytona:
		out = writeDaytona(spec, rules, &ps)
	default:
		ps.Add("", "%s is no dialect; use boxgate, vercel, e2b or daytona", name.Quote(string(to)))
	}
	if err := ps.Err(); err != nil {
		return nil, err
	}
	return json.MarshalIndent(out, "", "  ")
}

// readDialect reads a document in a dialect. In boxgate's it is a policy, or an object of network_policy and attach_headers
// as in a request to create a box.
func readDialect(data []byte, from Dialect) (policy.Spec, []policy.HeaderRule, error) {
	switch from {
	case Vercel:
		return ParseVercel(data)
	case E2B:
		return ParseE2B(data)
	case Daytona:
		spec, err := ParseDaytona(data)
		return spec, nil, err
	case Boxgate:
		return readBoxgate(data)
	}
	var ps document.Problems
	ps.Add("", "%s is no dialect; use boxgate, vercel, e2b or daytona", name.Quote(string(from)))
	return policy.Spec{}, nil, ps.Err()
}

func readBoxgate(data []byte) (spec policy.Spec, rules []policy.HeaderRule, err error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok {
		return policy.Spec{}, nil, ps.Err()
	}
	if doc.Kind == document.Text || doc.Has("mode") {
		spec, err = ParseSpec(data)
		return spec, nil, err
	}
	doc.Fields("", "a policy, or an object of network_policy and attach_headers", &ps, map[string]func(string, document.Value){
		"network_policy": func(at string, v document.Value) {
			var own document.Problems
			spec = readSpec(v, &own)
			spec.Check(&own)
			ps.AddBelow(at, own.Err())
		},
		"attach_headers": func(at string, v document.Value) {
			rules, err = policy.ReadHeaderRules(v)
			ps.AddBelow(at, err)
		},
	})
	if !doc.Has("network_policy") && doc.Kind == document.Object {
		ps.Add("/network_policy", "is missing")
	}
	return spec, rules, ps.Err()
}

// checkForeign refuses policies that neither of the other dialects can express.
func checkForeign(spec policy.Spec, ps *document.Problems) {
	if len(spec.DeniedDomains) > 0 {
		ps.Add("/denied_domains", "the other dialect denies no names")
	}
	if len(spec.Rules) > 0 {
		ps.Add("/rules", "the other dialect denies no requests")
	}
	for i, r := range spec.Rules {
		if r.Match != nil && r.Match.MCP != nil {
			ps.Add(document.Element("/rules", i)+"/match/mcp", "the other dialect does not match messages of MCP")
		}
		if r.Match != nil && r.Match.GraphQL != nil {
			ps.Add(document.Element("/rules", i)+"/match/graphql", "the other dialect does not match GraphQL operations")
		}
	}
	if len(spec.Repos) > 0 {
		ps.Add("/repos", "the other dialect knows no repositories")
	}
	if spec.Precedence != "" {
		ps.Add("/precedence", "the other dialect has no precedence of the longer name or prefix; leave it out, and write the entries so that none is an exception from another")
	}
	if spec.DNS != "" {
		ps.Add("/dns", "the other dialect does not choose how names are resolved; leave it out")
	}
	if spec.DeniedNames != "" {
		ps.Add("/denied_names", "the other dialect does not choose how denied names are answered; leave it out")
	}
	for key, list := range map[string][]string{"/allowed_cidrs": spec.AllowedCIDRs, "/denied_cidrs": spec.DeniedCIDRs} {
		if i := slices.Index(list, policy.ClusterServices); i >= 0 {
			ps.Add(document.Element(key, i), "the other dialect does not know the services of a cluster")
		}
	}
	for i, s := range spec.AllowedDomains {
		if p, err := name.ParsePattern(s); err == nil && p.Port() != 0 {
			ps.Add(document.Element("/allowed_domains", i), "%s has a port, which the other dialect does not know", name.Quote(s))
		}
	}
}

// everyAddress are the CIDRs of all addresses.
var everyAddress = []string{"0.0.0.0/0", "::/0"}

func writeVercel(spec policy.Spec, rules []policy.HeaderRule, ps *document.Problems) any {
	checkForeign(spec, ps)
	if spec.UpstreamProxy != nil {
		ps.Add("/upstream_proxy", "the other dialect has no upstream proxies")
	}
	if spec.Mode != policy.ModeCustom && len(rules) == 0 {
		return spec.Mode
	}
	domains, subnets := spec.AllowedDomains, map[string][]string{"allow": spec.AllowedCIDRs, "deny": spec.DeniedCIDRs}
	if spec.DefaultAllow() {
		domains, subnets["allow"] = []string{"*"}, everyAddress
	}
	for key, list := range subnets {
		if len(list) == 0 {
			delete(subnets, key)
		}
	}
	allow := orderedObject{}
	for _, host := range headerHosts(rules) {
		if !allowsHost(domains, host) {
			ps.Add(document.Pointer("/attach_headers", host), "its host is not in allowed_domains, and in the other dialect headers allow their host")
		}
		allow.add(host, vercelRules(rules, host, ps))
	}
	for _, host := range domains {
		allow.add(host, []any{})
	}
	if len(subnets) == 0 {
		return map[string]any{"allow": allow}
	}
	return map[string]any{"allow": allow, "subnets": subnets}
}

// headerHosts returns the patterns of rules, the most specific ones first: in Vercel's dialect the first domain wins.
func headerHosts(rules []policy.HeaderRule) (hosts []string) {
	for _, r := range rules {
		if s := r.Pattern.String(); !slices.Contains(hosts, s) {
			hosts = append(hosts, s)
		}
	}
	slices.SortStableFunc(hosts, func(a, b string) int {
		if wildA, wildB := strings.HasPrefix(a, "*."), strings.HasPrefix(b, "*."); wildA != wildB {
			if wildA {
				return 1
			}
			return -1
		}
		return strings.Count(b, ".") - strings.Count(a, ".")
	})
	return hosts
}

func allowsHost(domains []string, host string) bool {
	want, err := name.ParsePattern(host)
	return err == nil && slices.ContainsFunc(domains, func(s string) bool {
		p, err := name.ParsePattern(s)
		return err == nil && p.Covers(want)
	})
}

func vercelRules(rules []policy.HeaderRule, host string, ps *document.Problems) []any {
	out := []any{}
	for _, r := range rules {
		if r.Pattern.String() != host || r.Match == nil && !r.Applies() {
			continue
		}
		denies := r.Deny
		r.Deny = false // that dialect has it
		headers, to := plainHeaders(r, ps), r.OnConnections().Redirect
		rule := map[string]any{"transform": []any{map[string]any{"headers": headers}}}
		switch {
		case denies:
			rule = map[string]any{"response": map[string]int{"statusCode": 403}}
		case to != nil:
			rule = map[string]any{"forwardURL": to.URL()}
		}
		if r.Match != nil {
			rule["match"] = vercelMatch(*r.Match)
		}
		out = append(out, rule)
	}
	return out
}

func vercelMatch(m match.Match) map[string]any {
	matcher := func(m *match.Matcher) map[string]string {
		switch {
		case m.Exact != nil:
			return map[string]string{"exact": *m.Exact}
		case m.Prefix != nil:
			return map[string]string{"startsWith": *m.Prefix}
		}
		return map[string]string{"regex": *m.Regex}
	}
	pairs := func(m match.Pairs) (out []any) {
		for _, p := range m.Pairs {
			pair := map[string]any{"key": matcher(&p.Key)}
			if p.Value != nil {
				pair["value"] = matcher(p.Value)
			}
			out = append(out, pair)
		}
		return out
	}
	out := map[string]any{}
	if len(m.Methods) > 0 {
		out["method"] = m.Methods
	}
	if m.Path != nil {
		out["path"] = matcher(m.Path)
	}
	if !m.Query.IsZero() {
		out["queryString"] = pairs(m.Query)
	}
	if !m.Headers.IsZero() {
		out["headers"] = pairs(m.Headers)
	}
	return out
}

func writeE2B(spec policy.Spec, rules []policy.HeaderRule, ps *document.Problems) any {
	checkForeign(spec, ps)
	out := map[string]any{}
	switch open := spec.DefaultAllow(); {
	case spec.Mode == policy.ModeAllowAll:
	case open:
		out["denyOut"] = spec.DeniedCIDRs
	case len(spec.DeniedCIDRs) > 0:
		ps.Add("/denied_cidrs", "in the other dialect what is allowed wins over what is denied")
	default:
		out["denyOut"] = everyAddress
		if allowed := slices.Concat(spec.AllowedDomains, spec.AllowedCIDRs); len(allowed) > 0 {
			out["allowOut"] = allowed
		}
	}
	proxy, rules := writeE2BProxy(spec, rules, ps)
	if proxy != nil {
		out["egressProxy"] = proxy
	}
	of := map[string]any{}
	for _, r := range rules {
		if r.Match != nil {
			ps.Add(document.Pointer("/attach_headers", r.Pattern.String()), "looks at the request, which the other dialect does not")
		}
		if r.OnConnections().Redirect != nil {
			ps.Add(document.Pointer("/attach_headers", r.Pattern.String()), "forwards requests to a proxy, which the other dialect does not")
		}
		of[r.Pattern.String()] = []any{map[string]any{"transform": map[string]any{"headers": plainHeaders(r, ps)}}}
	}
	if len(of) > 0 {
		out["rules"] = of
	}
	return out
}

// orderedObject is a JSON object whose members have an order.
type orderedObject struct {
	keys   []string
	values []any
}

// add adds a member unless there is one of that name.
func (o *orderedObject) add(key string, value any) {
	if !slices.Contains(o.keys, key) {
		o.keys, o.values = append(o.keys, key), append(o.values, value)
	}
}

// MarshalJSON writes the members in their order.
func (o orderedObject) MarshalJSON() ([]byte, error) {
	out := []byte("{")
	for i, key := range o.keys {
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(o.values[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, name...), ':'), value...)
	}
	return append(out, '}'), nil
}

// plainHeaders returns the headers of a rule for a dialect with literal values only.
func plainHeaders(r policy.HeaderRule, ps *document.Problems) map[string]string {
	at := document.Pointer("/attach_headers", r.Pattern.String())
	out := map[string]string{}
	for _, h := range header.Of(r.Effects) {
		if h.Remove || h.Source != "" {
			ps.Add(at, "%s is removed or has a source, and the other dialect knows literal values alone", name.Quote(h.Name))
		}
		out[h.Name] = h.Literal.Reveal()
	}
	on := r.OnConnections()
	if on.Login != nil || on.Proxy != nil {
		ps.Add(at, "is a login to a server that does not speak HTTP, and the other dialect knows headers alone")
	}
	does := r.OnRequests()
	if r.Deny || r.Scrub || does.Replacer != nil || on.Identity != nil {
		ps.Add(at, "has placeholders, scrub, deny or a client certificate, which the other dialect does not know")
	}
	if does.Rewrites() {
		ps.Add(at, "signs, or sets parameters of the query, which the other dialect does not know")
	}
	for _, e := range r.Effects {
		switch e.(type) {
		case rule.HeaderSetter, rule.Identity, rule.Redirect, rule.Login, rule.ProxyLogin: // handled above or by the dialect
		default:
			ps.Add(at, "has %s, which the other dialect does not know", e.Key())
		}
	}
	if r.Pattern.Port() != 0 {
		ps.Add(at, "has a port, which the other dialect does not know")
	}
	return out
}
