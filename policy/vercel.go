package policy

import (
	"errors"
	"maps"
)

// ParseVercel reads a network policy in the dialect of Vercel Sandbox and translates it:
//
//	"allow-all" | "deny-all" | {allow: [domain…] | {domain: [{transform: [{headers}]}…]}, subnets: {allow: [cidr…], deny: [cidr…]}}
//
// What is not allowed is denied in that dialect: {} and a policy with denied subnets alone deny everything. Denied
// subnets win over everything, allowed ones over domains. Of the rules of a domain the first that matches a request
// wins, and of the domains that cover a host the first one. The headers that transforms set are returned as header
// rules, nil if there are none. What boxgate cannot honour is refused: match, forwardURL, and headers on "*". The error
// is an *[InvalidError] that lists every problem.
func ParseVercel(data []byte) (Spec, map[string]map[string]string, error) {
	var ps problems
	doc, ok := parseDocument(data, &ps)
	if !ok {
		return Spec{}, nil, ps.err()
	}
	return translateVercel(doc, &ps)
}

// isVercel reports whether a document is in that dialect rather than boxgate's own.
func isVercel(doc value) bool {
	return doc.kind == kindText || !doc.has("mode") && (doc.has("allow") || doc.has("subnets"))
}

func translateVercel(doc value, ps *problems) (Spec, map[string]map[string]string, error) {
	var spec Spec
	var hosts []vercelHost
	if doc.kind == kindText {
		spec.Mode = Mode(doc.text)
		if spec.Mode != ModeAllowAll && spec.Mode != ModeDenyAll {
			ps.add("", `%s is no policy; use "allow-all", "deny-all" or an object with allow`, quoted(doc.text))
		}
		return vercelResult(spec, nil, ps)
	}
	doc.fields("", `"allow-all", "deny-all" or an object with allow`, ps, map[string]func(string, value){
		"allow":   func(at string, v value) { hosts = readVercelAllow(at, v, ps) },
		"subnets": func(at string, v value) { readVercelSubnets(at, v, &spec, ps) },
	})
	for _, h := range hosts {
		spec.AllowedDomains = append(spec.AllowedDomains, h.host)
	}
	spec.Mode = ModeCustom
	if len(spec.AllowedDomains)+len(spec.AllowedCIDRs) == 0 {
		spec = Spec{Mode: ModeDenyAll}
	}
	return vercelResult(spec, hosts, ps)
}

func vercelResult(spec Spec, hosts []vercelHost, ps *problems) (Spec, map[string]map[string]string, error) {
	headers := vercelHeaders(hosts, ps)
	if err := ps.err(); err != nil {
		return Spec{}, nil, err
	}
	return spec, headers, nil
}

func readVercelSubnets(at string, v value, spec *Spec, ps *problems) {
	list := func(to *[]string) func(string, value) {
		return func(at string, v value) {
			*to = v.strings(at, ps)
			checkCIDRs(at, *to, ps)
			if len(*to) == 0 {
				*to = nil
			}
		}
	}
	v.fields(at, "an object with allow and deny", ps, map[string]func(string, value){
		"allow": list(&spec.AllowedCIDRs),
		"deny":  list(&spec.DeniedCIDRs),
	})
}

// vercelHost is one domain of allow with the headers that its first rule sets.
type vercelHost struct {
	at      string
	host    string
	pattern Pattern
	headers map[string]string
}

// readVercelAllow reads both forms of allow, in the order written.
func readVercelAllow(at string, v value, ps *problems) []vercelHost {
	var hosts []vercelHost
	switch v.kind {
	case kindList:
		for i, s := range v.strings(at, ps) {
			hosts = append(hosts, vercelHost{at: element(at, i), host: s})
		}
	case kindObject:
		if tooMany(at, len(v.items), maxEntries, ps) {
			return nil
		}
		for i, host := range v.keys {
			at := pointer(at, host)
			hosts = append(hosts, vercelHost{at: at, host: host, headers: readVercelRules(at, v.items[i], ps)})
		}
	default:
		ps.add(at, "is %s; want a list of domains, or an object with rules for each", v.kind)
	}
	if tooMany(at, len(hosts), maxEntries, ps) {
		return nil
	}
	for i := range hosts {
		d, _ := checkDomain(hosts[i].at, hosts[i].host, ps)
		hosts[i].pattern = d.pattern
	}
	return hosts
}

// readVercelRules reads every rule of a domain and returns the headers of the first. A rule can only have a match that
// matches everything, so the others never apply.
func readVercelRules(at string, v value, ps *problems) map[string]string {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of rules", v.kind)
		return nil
	}
	var first map[string]string
	for i, item := range v.items {
		at := element(at, i)
		var headers map[string]string
		transforms := false
		item.fields(at, "an object with transform", ps, map[string]func(string, value){
			"transform": func(at string, v value) { transforms, headers = true, readVercelTransforms(at, v, ps) },
			"match": func(at string, v value) {
				if v.kind != kindObject || len(v.keys) > 0 {
					ps.add(at, "boxgate sets headers on every request to a host and cannot choose by request; leave match out")
				}
			},
			"forwardURL": func(at string, _ value) {
				ps.add(at, "boxgate does not forward requests to another proxy; leave the rule out")
			},
		})
		if !transforms && item.kind == kindObject {
			ps.add(at, "has no transform")
		}
		if i == 0 {
			first = headers
		}
	}
	return first
}

func readVercelTransforms(at string, v value, ps *problems) map[string]string {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of transforms", v.kind)
		return nil
	}
	headers := map[string]string{}
	for i, item := range v.items {
		item.fields(element(at, i), "an object with headers", ps, map[string]func(string, value){
			"headers": func(at string, v value) { readVercelHeaders(at, v, headers, ps) },
		})
	}
	return headers
}

// readVercelHeaders adds the headers of one transform to those of earlier ones.
func readVercelHeaders(at string, v value, headers map[string]string, ps *problems) {
	if v.kind != kindObject {
		ps.add(at, "is %s; want an object of header names and values", v.kind)
		return
	}
	for i, name := range v.keys {
		at := pointer(at, name)
		text := v.items[i].string(at, ps)
		if flaw := headerNameFlaw(name); flaw != "" {
			ps.add(at, "%s %s", quoted(name), flaw)
		}
		if flaw := headerValueFlaw(text); flaw != "" {
			ps.add(at, "the value of %s %s", quoted(name), flaw)
		}
		for earlier := range headers {
			if foldHeader(earlier) == foldHeader(name) {
				delete(headers, earlier) // a later transform replaces what an earlier one set
			}
		}
		headers[name] = text
	}
}

// vercelHeaders turns the hosts into header rules. In the Vercel dialect the first domain wins, in boxgate the most
// specific one; where the two differ the policy is refused. A specific domain without headers before a wider one with
// headers is kept as a rule that sets none.
func vercelHeaders(hosts []vercelHost, ps *problems) map[string]map[string]string {
	out := map[string]map[string]string{}
	for i, h := range hosts {
		if len(h.headers) == 0 {
			continue
		}
		if h.pattern.ok && h.pattern.name.IsZero() {
			ps.add(h.at, `headers on "*" would go to every host; set them on a domain`)
		}
		out[h.host] = h.headers
		for k, other := range hosts {
			switch {
			case k < i && refuseShadowed(other, h, ps), k > i && refuseShadowed(h, other, ps):
			case k < i && len(other.headers) == 0 && covers443(h.pattern, other.pattern):
				out[other.host] = map[string]string{}
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	_, err := ParseHeaders(out)
	if invalid, ok := errors.AsType[*InvalidError](err); ok && len(ps.list) == 0 {
		for _, p := range invalid.Problems {
			ps.add("/allow"+p.Pointer, "%s", p.Message)
		}
	}
	return out
}

// refuseShadowed refuses a later domain whose hosts an earlier one already covers with other headers.
func refuseShadowed(earlier, later vercelHost, ps *problems) bool {
	if !covers443(earlier.pattern, later.pattern) || maps.Equal(earlier.headers, later.headers) {
		return false
	}
	ps.add(later.at, "%s comes before and covers it, so its own headers would never be set; put %s first",
		quoted(earlier.host), quoted(later.host))
	return true
}

// covers443 reports whether p covers all hosts of q that headers can be set on.
func covers443(p, q Pattern) bool {
	return p.ok && q.ok && p.withPort(defaultTLSPort).covers(q.withPort(defaultTLSPort))
}
