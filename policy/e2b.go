package policy

import (
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// ParseE2B reads the network options of E2B and translates them:
//
//	{allowOut: [domain | cidr…], denyOut: [cidr…], rules: {domain: [{transform: {headers}}…]},
//	 egressProxy: {address, username, password}, allowPublicTraffic: true}
//
// What is neither allowed nor denied is allowed in that dialect, and what is allowed wins over what is denied; in boxgate
// denied wins. So allowOut is honoured beside a denyOut of all traffic, and where it opens nothing that denyOut closes;
// else it is refused. All rules of a domain apply, later headers replacing earlier ones. Refused as well are
// maskRequestHost, httpsPorts, allowPublicTraffic: false, and identity tokens in headers. The error is an *[document.InvalidError] that lists
// every problem.
func ParseE2B(data []byte) (Spec, []HeaderRule, error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok {
		return Spec{}, nil, ps.Err()
	}
	return translateE2B(doc, &ps)
}

// isE2B reports whether a document is in that dialect rather than boxgate's own.
func isE2B(doc document.Value) bool {
	if doc.Kind != document.Object || doc.Has("mode") {
		return false
	}
	for i, key := range doc.Keys {
		switch key {
		case "allowOut", "denyOut", "egressProxy", "maskRequestHost", "httpsPorts", "allowPublicTraffic", "allowInternetAccess", "allow_internet_access":
			return true
		case "rules":
			return doc.Items[i].Kind == document.Object
		}
	}
	return false
}

// e2bOptions are the network options as written.
type e2bOptions struct {
	allow, deny []string
	closed      bool // no access to the internet but for allow
	headers     map[name.Pattern][]HeaderRule
	proxy       *UpstreamSpec
	login       *HeaderRule // for the proxy; nil: none
}

func translateE2B(doc document.Value, ps *document.Problems) (Spec, []HeaderRule, error) {
	o := e2bOptions{headers: map[name.Pattern][]HeaderRule{}}
	access := func(at string, v document.Value) {
		if v.Kind != document.Bool {
			ps.Add(at, "is %s; want true or false", v.Kind)
		}
		o.closed = o.closed || !v.Truth
	}
	doc.Fields("", "an object with allowOut and denyOut", ps, map[string]func(string, document.Value){
		"allowOut":              func(at string, v document.Value) { o.allow = v.AsStrings(at, ps) },
		"denyOut":               func(at string, v document.Value) { o.deny = v.AsStrings(at, ps) },
		"allowInternetAccess":   access,
		"allow_internet_access": access,
		"rules":                 func(at string, v document.Value) { o.readRules(at, v, ps) },
		"egressProxy":           func(at string, v document.Value) { o.readProxy(at, v, ps) },
		"httpsPorts": func(at string, _ document.Value) {
			ps.Add(at, "public URLs reach applications without TLS; leave it out, and serve these ports in the clear")
		},
		"maskRequestHost": func(at string, _ document.Value) {
			ps.Add(at, "public URLs are made one by one, and apps see the host of their own; leave it out")
		},
		"allowPublicTraffic": func(at string, v document.Value) {
			if v.Kind != document.Bool || !v.Truth {
				ps.Add(at, "public URLs are made one by one: leave it out, and make those that need a credential with one")
			}
		},
	})
	spec := o.spec(ps)
	spec.UpstreamProxy = o.proxy
	if o.login != nil {
		if _, twice := o.headers[o.login.Pattern]; twice {
			ps.Add("/egressProxy", "is at a host and port that rules has headers for; boxgate needs one or the other")
		}
		o.headers[o.login.Pattern] = []HeaderRule{*o.login}
	}
	headers := patternRules(o.headers, ps)
	if err := ps.Err(); err != nil {
		return Spec{}, nil, err
	}
	return spec, headers, nil
}

// spec translates the lists. Addresses are those that are also written as one, without a prefix length.
func (o *e2bOptions) spec(ps *document.Problems) Spec {
	denied := checkCIDRs("/denyOut", o.deny, maxEntries, ps)
	var spec Spec
	var allowed []netip.Prefix
	for i, s := range o.allow {
		at := document.Element("/allowOut", i)
		if name.MeansAddress(s) {
			c, _ := ps.CIDR(at, s)
			allowed, spec.AllowedCIDRs = append(allowed, c), append(spec.AllowedCIDRs, s)
			continue
		}
		ps.Pattern(at, s)
		spec.AllowedDomains = append(spec.AllowedDomains, s)
	}
	spec.Mode = ModeCustom
	switch {
	case slices.ContainsFunc(allowed, isAllTraffic):
		return Spec{Mode: ModeAllowAll}
	case o.closed || slices.ContainsFunc(denied, func(c cidr) bool { return isAllTraffic(c.prefix) }):
		if len(o.allow) == 0 {
			return Spec{Mode: ModeDenyAll}
		}
		return spec
	}
	return o.deniedOnly(spec, allowed, denied, ps)
}

// deniedOnly translates lists that deny some addresses: all others are allowed, whether allowOut lists them or not.
func (o *e2bOptions) deniedOnly(spec Spec, allowed []netip.Prefix, denied []cidr, ps *document.Problems) Spec {
	if len(denied) == 0 {
		if len(o.allow) > 0 {
			ps.Add("/allowOut", `restricts nothing, because nothing is denied; add "0.0.0.0/0" to denyOut, or leave it out`)
		}
		return Spec{Mode: ModeAllowAll}
	}
	if len(spec.AllowedDomains) > 0 {
		ps.Add("/allowOut", `allows names even at the addresses of denyOut, and in boxgate what is denied wins; deny "0.0.0.0/0", or leave the names out`)
	}
	for i, p := range allowed {
		for _, d := range denied {
			if p.IsValid() && d.prefix.IsValid() && p.Overlaps(d.prefix) {
				ps.Add("/allowOut", "%s overlaps %s of denyOut, and in boxgate what is denied wins; deny what is around it instead",
					name.Quote(spec.AllowedCIDRs[i]), name.Quote(d.rule))
			}
		}
	}
	return Spec{Mode: ModeCustom, DeniedCIDRs: o.deny}
}

func isAllTraffic(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 0 }

func (o *e2bOptions) readRules(at string, v document.Value, ps *document.Problems) {
	if v.Kind != document.Object {
		ps.Add(at, "is %s; want an object of domains", v.Kind)
		return
	}
	if ps.TooMany(at, len(v.Keys), MaxHeaderHosts) {
		return
	}
	for i, host := range v.Keys {
		at := document.Pointer(at, host)
		pattern, ok := ps.Pattern(at, host)
		if ok && pattern.Name().IsZero() {
			ps.Add(at, `headers on "*" would go to every host; set them on a domain`)
		}
		if _, twice := o.headers[pattern]; ok && twice {
			ps.Add(at, "is a duplicate")
		}
		o.headers[pattern] = []HeaderRule{{Headers: readE2BRules(at, v.Items[i], ps)}}
	}
}

// readE2BRules reads the rules of a domain, all of which apply.
func readE2BRules(at string, v document.Value, ps *document.Problems) (headers []Header) {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of rules", v.Kind)
		return nil
	}
	for i, item := range v.Items {
		item.Fields(document.Element(at, i), "an object with transform", ps, map[string]func(string, document.Value){
			"transform": func(at string, v document.Value) {
				v.Fields(at, "an object with headers", ps, map[string]func(string, document.Value){
					"headers": func(at string, v document.Value) { headers = overlayHeaders(headers, readE2BHeaders(at, v, ps)) },
				})
			},
		})
	}
	ps.TooMany(at, len(headers), maxHostHeaders)
	sortHeaders(headers)
	return headers
}

func readE2BHeaders(at string, v document.Value, ps *document.Problems) []Header {
	headers := readPlainHeaders(at, v, ps)
	for _, h := range headers {
		if strings.Contains(h.Value.Reveal(), "${e2b.") {
			ps.Add(document.Pointer(at, h.Name), "asks for an identity token of E2B, which boxgate cannot mint; use a secret of its own in attach_headers")
		}
	}
	return headers
}
