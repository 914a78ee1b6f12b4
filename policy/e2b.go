package policy

import (
	"boxgate/policy/name"
	"net/netip"
	"slices"
	"strings"
)

// ParseE2B reads the network options of E2B and translates them:
//
//	{allowOut: [domain | cidr…], denyOut: [cidr…], rules: {domain: [{transform: {headers}}…]},
//	 egressProxy: {address, username, password}, allowPublicTraffic: true}
//
// What is neither allowed nor denied is allowed in that dialect, and what is allowed wins over what is denied; in boxgate
// denied wins. So allowOut is honoured beside a denyOut of all traffic, and where it opens nothing that denyOut closes;
// else it is refused. All rules of a domain apply, later headers replacing earlier ones. Refused as well are
// maskRequestHost, httpsPorts, allowPublicTraffic: false, and identity tokens in headers. The error is an *[InvalidError] that lists
// every problem.
func ParseE2B(data []byte) (Spec, []HeaderRule, error) {
	var ps problems
	doc, ok := parseDocument(data, &ps)
	if !ok {
		return Spec{}, nil, ps.err()
	}
	return translateE2B(doc, &ps)
}

// isE2B reports whether a document is in that dialect rather than boxgate's own.
func isE2B(doc value) bool {
	if doc.kind != kindObject || doc.has("mode") {
		return false
	}
	for i, key := range doc.keys {
		switch key {
		case "allowOut", "denyOut", "egressProxy", "maskRequestHost", "httpsPorts", "allowPublicTraffic", "allowInternetAccess", "allow_internet_access":
			return true
		case "rules":
			return doc.items[i].kind == kindObject
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

func translateE2B(doc value, ps *problems) (Spec, []HeaderRule, error) {
	o := e2bOptions{headers: map[name.Pattern][]HeaderRule{}}
	access := func(at string, v value) {
		if v.kind != kindBool {
			ps.add(at, "is %s; want true or false", v.kind)
		}
		o.closed = o.closed || !v.truth
	}
	doc.fields("", "an object with allowOut and denyOut", ps, map[string]func(string, value){
		"allowOut":              func(at string, v value) { o.allow = v.strings(at, ps) },
		"denyOut":               func(at string, v value) { o.deny = v.strings(at, ps) },
		"allowInternetAccess":   access,
		"allow_internet_access": access,
		"rules":                 func(at string, v value) { o.readRules(at, v, ps) },
		"egressProxy":           func(at string, v value) { o.readProxy(at, v, ps) },
		"httpsPorts": func(at string, _ value) {
			ps.add(at, "public URLs reach applications without TLS; leave it out, and serve these ports in the clear")
		},
		"maskRequestHost": func(at string, _ value) {
			ps.add(at, "public URLs are made one by one, and apps see the host of their own; leave it out")
		},
		"allowPublicTraffic": func(at string, v value) {
			if v.kind != kindBool || !v.truth {
				ps.add(at, "public URLs are made one by one: leave it out, and make those that need a credential with one")
			}
		},
	})
	spec := o.spec(ps)
	spec.UpstreamProxy = o.proxy
	if o.login != nil {
		if _, twice := o.headers[o.login.Pattern]; twice {
			ps.add("/egressProxy", "is at a host and port that rules has headers for; boxgate needs one or the other")
		}
		o.headers[o.login.Pattern] = []HeaderRule{*o.login}
	}
	headers := patternRules(o.headers, ps)
	if err := ps.err(); err != nil {
		return Spec{}, nil, err
	}
	return spec, headers, nil
}

// spec translates the lists. Addresses are those that are also written as one, without a prefix length.
func (o *e2bOptions) spec(ps *problems) Spec {
	denied := checkCIDRs("/denyOut", o.deny, ps)
	var spec Spec
	var allowed []netip.Prefix
	for i, s := range o.allow {
		at := element("/allowOut", i)
		if name.MeansAddress(s) {
			c, _ := checkCIDR(at, s, ps)
			allowed, spec.AllowedCIDRs = append(allowed, c.prefix), append(spec.AllowedCIDRs, s)
			continue
		}
		checkDomain(at, s, ps)
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
func (o *e2bOptions) deniedOnly(spec Spec, allowed []netip.Prefix, denied []cidr, ps *problems) Spec {
	if len(denied) == 0 {
		if len(o.allow) > 0 {
			ps.add("/allowOut", `restricts nothing, because nothing is denied; add "0.0.0.0/0" to denyOut, or leave it out`)
		}
		return Spec{Mode: ModeAllowAll}
	}
	if len(spec.AllowedDomains) > 0 {
		ps.add("/allowOut", `allows names even at the addresses of denyOut, and in boxgate what is denied wins; deny "0.0.0.0/0", or leave the names out`)
	}
	for i, p := range allowed {
		for _, d := range denied {
			if p.IsValid() && d.prefix.IsValid() && p.Overlaps(d.prefix) {
				ps.add("/allowOut", "%s overlaps %s of denyOut, and in boxgate what is denied wins; deny what is around it instead",
					name.Quote(spec.AllowedCIDRs[i]), name.Quote(d.rule))
			}
		}
	}
	return Spec{Mode: ModeCustom, DeniedCIDRs: o.deny}
}

func isAllTraffic(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 0 }

func (o *e2bOptions) readRules(at string, v value, ps *problems) {
	if v.kind != kindObject {
		ps.add(at, "is %s; want an object of domains", v.kind)
		return
	}
	if tooMany(at, len(v.keys), MaxHeaderHosts, ps) {
		return
	}
	for i, host := range v.keys {
		at := pointer(at, host)
		d, ok := checkDomain(at, host, ps)
		if ok && d.pattern.Name().IsZero() {
			ps.add(at, `headers on "*" would go to every host; set them on a domain`)
		}
		if _, twice := o.headers[d.pattern]; ok && twice {
			ps.add(at, "is a duplicate")
		}
		o.headers[d.pattern] = []HeaderRule{{Headers: readE2BRules(at, v.items[i], ps)}}
	}
}

// readE2BRules reads the rules of a domain, all of which apply.
func readE2BRules(at string, v value, ps *problems) (headers []Header) {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of rules", v.kind)
		return nil
	}
	for i, item := range v.items {
		item.fields(element(at, i), "an object with transform", ps, map[string]func(string, value){
			"transform": func(at string, v value) {
				v.fields(at, "an object with headers", ps, map[string]func(string, value){
					"headers": func(at string, v value) { headers = overlayHeaders(headers, readE2BHeaders(at, v, ps)) },
				})
			},
		})
	}
	tooMany(at, len(headers), maxHostHeaders, ps)
	sortHeaders(headers)
	return headers
}

func readE2BHeaders(at string, v value, ps *problems) []Header {
	headers := readPlainHeaders(at, v, ps)
	for _, h := range headers {
		if strings.Contains(h.Value.Reveal(), "${e2b.") {
			ps.add(pointer(at, h.Name), "asks for an identity token of E2B, which boxgate cannot mint; use a secret of its own in attach_headers")
		}
	}
	return headers
}
