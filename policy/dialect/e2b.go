package dialect

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/header"
	"boxgate/rule/upstream"
)

// ParseE2B reads the network options of E2B and translates them:
//
//	{allowOut: [domain | cidr…], denyOut: [cidr…], rules: {domain: [{transform: {headers}}…]},
//	 egressProxy: {address, username, password}, allowPublicTraffic: true}
//
// In E2B destinations in neither list are allowed, and allowOut wins over denyOut; in boxgate denied entries win. So allowOut is
// accepted with a denyOut of all traffic, or if it does not overlap with denyOut, and refused otherwise. All rules of a domain
// apply, and later headers replace earlier ones. maskRequestHost, httpsPorts, allowPublicTraffic: false, and identity tokens in
// headers are refused as well. The error is an *[document.InvalidError] that lists every problem.
func ParseE2B(data []byte) (policy.Spec, []policy.HeaderRule, error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok {
		return policy.Spec{}, nil, ps.Err()
	}
	return translateE2B(doc, &ps)
}

// isE2B reports whether a document is in E2B's dialect rather than boxgate's.
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
	closed      bool // only entries of allow are allowed
	headers     map[name.Pattern][]policy.HeaderRule
	proxy       *policy.UpstreamSpec
	login       *policy.HeaderRule // for the proxy; nil: none
}

func translateE2B(doc document.Value, ps *document.Problems) (policy.Spec, []policy.HeaderRule, error) {
	o := e2bOptions{headers: map[name.Pattern][]policy.HeaderRule{}}
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
		o.headers[o.login.Pattern] = []policy.HeaderRule{*o.login}
	}
	headers := patternRules(o.headers, ps)
	if err := ps.Err(); err != nil {
		return policy.Spec{}, nil, err
	}
	return spec, headers, nil
}

// spec translates the lists, whose addresses may have no prefix length.
func (o *e2bOptions) spec(ps *document.Problems) policy.Spec {
	denied := readCIDRs("/denyOut", o.deny, ps)
	var spec policy.Spec
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
	spec.Mode = policy.ModeCustom
	switch {
	case slices.ContainsFunc(allowed, isAllTraffic):
		return policy.Spec{Mode: policy.ModeAllowAll}
	case o.closed || slices.ContainsFunc(denied, func(s subnet) bool { return isAllTraffic(s.prefix) }):
		if len(o.allow) == 0 {
			return policy.Spec{Mode: policy.ModeDenyAll}
		}
		return spec
	}
	return o.deniedOnly(spec, allowed, denied, ps)
}

// deniedOnly translates lists that deny some addresses. All others are allowed, whether or not allowOut contains them.
func (o *e2bOptions) deniedOnly(spec policy.Spec, allowed []netip.Prefix, denied []subnet, ps *document.Problems) policy.Spec {
	if len(denied) == 0 {
		if len(o.allow) > 0 {
			ps.Add("/allowOut", `restricts nothing, because nothing is denied; add "0.0.0.0/0" to denyOut, or leave it out`)
		}
		return policy.Spec{Mode: policy.ModeAllowAll}
	}
	if len(spec.AllowedDomains) > 0 {
		ps.Add("/allowOut", `allows names even at the addresses of denyOut, and in boxgate what is denied wins; deny "0.0.0.0/0", or leave the names out`)
	}
	for i, p := range allowed {
		for _, d := range denied {
			if p.IsValid() && d.prefix.IsValid() && p.Overlaps(d.prefix) {
				ps.Add("/allowOut", "%s overlaps %s of denyOut, and in boxgate what is denied wins; deny what is around it instead",
					name.Quote(spec.AllowedCIDRs[i]), name.Quote(d.text))
			}
		}
	}
	return policy.Spec{Mode: policy.ModeCustom, DeniedCIDRs: o.deny}
}

func isAllTraffic(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 0 }

func (o *e2bOptions) readRules(at string, v document.Value, ps *document.Problems) {
	if v.Kind != document.Object {
		ps.Add(at, "is %s; want an object of domains", v.Kind)
		return
	}
	if ps.TooMany(at, len(v.Keys), policy.MaxHeaderHosts) {
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
		o.headers[pattern] = []policy.HeaderRule{{Effects: setting(readE2BRules(at, v.Items[i], ps))}}
	}
}

// readE2BRules reads the rules of a domain, all of which apply.
func readE2BRules(at string, v document.Value, ps *document.Problems) (headers []header.Header) {
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
	ps.TooMany(at, len(headers), header.MaxHeaders)
	header.Sort(headers)
	return headers
}

func readE2BHeaders(at string, v document.Value, ps *document.Problems) []header.Header {
	headers := header.ReadPlain(at, v, ps)
	for _, h := range headers {
		if strings.Contains(h.Literal.Reveal(), "${e2b.") {
			ps.Add(document.Pointer(at, h.Name), "asks for an identity token of E2B, which boxgate cannot mint; use a secret of its own in attach_headers")
		}
	}
	return headers
}

// readProxy reads egressProxy, a SOCKS5 proxy with credentials. The credentials become a header rule, which requires a host name.
func (o *e2bOptions) readProxy(at string, v document.Value, ps *document.Problems) {
	var address string
	user, password := "", name.NewSecret("")
	v.Fields(at, "an object with address", ps, map[string]func(string, document.Value){
		"address":  func(at string, v document.Value) { address = v.AsString(at, ps) },
		"username": func(at string, v document.Value) { user = v.AsString(at, ps) },
		"password": func(at string, v document.Value) { password = name.NewSecret(v.AsString(at, ps)) },
	})
	if v.Kind != document.Object {
		return
	}
	proxy, err := policy.ParseUpstream(string(policy.ProxySOCKS5) + "://" + address)
	if _, _, noPort := net.SplitHostPort(address); err != nil || noPort != nil {
		ps.Add(at+"/address", "is not the host and port of a SOCKS5 proxy, such as proxy.example.com:1080")
		return
	}
	o.proxy = &policy.UpstreamSpec{URL: proxy.URL()}
	switch {
	case !v.Has("username") && !v.Has("password"):
		return
	case !v.Has("username") || !v.Has("password"):
		ps.Add(at, "has one of username and password; give both, or neither")
		return
	case proxy.Name.IsZero():
		ps.Add(at+"/address", "gives the proxy by its address, and boxgate keeps credentials by name; use the name of the proxy")
		return
	}
	if err := upstream.CheckUser(user); err != nil {
		ps.Add(at+"/username", "%s", err)
	}
	if err := upstream.CheckPassword(password); err != nil {
		ps.Add(at+"/password", "%s", err)
	}
	pattern, _ := name.ParsePattern(net.JoinHostPort(proxy.Name.String(), strconv.Itoa(int(proxy.Port)))) // made of a name and a port
	o.login = &policy.HeaderRule{Pattern: pattern, Effects: []rule.Effect{upstream.New(string(policy.ProxySOCKS5), user, rule.Value{Literal: password})}}
}

// writeE2BProxy returns the proxy of a policy with its login, nil if there is none, and the other rules.
func writeE2BProxy(spec policy.Spec, rules []policy.HeaderRule, ps *document.Problems) (out map[string]string, rest []policy.HeaderRule) {
	p, err := (*policy.UpstreamProxy)(nil), error(nil)
	if spec.UpstreamProxy != nil {
		if p, err = policy.ParseUpstream(spec.UpstreamProxy.URL); err == nil {
			out = map[string]string{"address": net.JoinHostPort(p.Host(), strconv.Itoa(int(p.Port)))}
		}
		if p == nil || p.Scheme != policy.ProxySOCKS5 || len(spec.UpstreamProxy.ResolveThere) > 0 {
			ps.Add("/upstream_proxy", "is not one of SOCKS5 for names that are resolved here; the other dialect knows no other")
		}
	}
	for _, r := range rules {
		login := r.OnConnections().Proxy
		if login == nil {
			rest = append(rest, r)
			continue
		}
		at := document.Pointer("/attach_headers", r.Pattern.String())
		switch password := login.Password(); {
		case p == nil || p.Name != r.Pattern.Name() || p.Port != r.Pattern.Port():
			ps.Add(at, "is the login to a proxy that the policy does not use")
		case !login.IsFor(string(policy.ProxySOCKS5)):
			ps.Add(at, "is not for SOCKS5, and the other dialect knows no other proxies")
		case password.Source != "":
			ps.Add(at, "has a source, and the other dialect knows literal values alone")
		default:
			out["username"], out["password"] = login.Username(), password.Literal.Reveal()
		}
	}
	return out, rest
}

// subnet is a range of addresses, parsed and as written.
type subnet struct {
	prefix netip.Prefix
	text   string
}

// readCIDRs returns the valid entries of a list.
func readCIDRs(at string, list []string, ps *document.Problems) (out []subnet) {
	if ps.TooMany(at, len(list), policy.MaxEntries) {
		return nil
	}
	for i, s := range list {
		if p, ok := ps.CIDR(document.Element(at, i), s); ok {
			out = append(out, subnet{p, s})
		}
	}
	return out
}
