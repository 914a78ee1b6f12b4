package policy

import (
	"net"
	"strconv"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// readProxy reads egressProxy, a SOCKS5 proxy with its credentials. These become a header rule, which has a host by its name.
func (o *e2bOptions) readProxy(at string, v document.Value, ps *document.Problems) {
	var address string
	login := &ProxyLogin{Scheme: ProxySOCKS5, Password: name.NewSecret("")}
	v.Fields(at, "an object with address", ps, map[string]func(string, document.Value){
		"address":  func(at string, v document.Value) { address = v.AsString(at, ps) },
		"username": func(at string, v document.Value) { login.User = v.AsString(at, ps) },
		"password": func(at string, v document.Value) { login.Password = name.NewSecret(v.AsString(at, ps)) },
	})
	if v.Kind != document.Object {
		return
	}
	proxy, err := ParseUpstream(string(ProxySOCKS5) + "://" + address)
	if _, _, noPort := net.SplitHostPort(address); err != nil || noPort != nil {
		ps.Add(at+"/address", "is not the host and port of a SOCKS5 proxy, such as proxy.example.com:1080")
		return
	}
	o.proxy = &UpstreamSpec{URL: proxy.URL()}
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
	checkProxyUser(at+"/username", login.User, ps)
	checkProxyPassword(at+"/password", login.Password, ps)
	pattern, _ := name.ParsePattern(net.JoinHostPort(proxy.Name.String(), strconv.Itoa(int(proxy.Port)))) // made of a name and a port
	o.login = &HeaderRule{Pattern: pattern, Login: &Login{Proxy: login}}
}

// writeE2BProxy writes the proxy of a policy and the login that rules have for it; nil if there is none. The other rules are
// returned.
func writeE2BProxy(spec Spec, rules []HeaderRule, ps *document.Problems) (out map[string]string, rest []HeaderRule) {
	p, err := (*UpstreamProxy)(nil), error(nil)
	if spec.UpstreamProxy != nil {
		if p, err = ParseUpstream(spec.UpstreamProxy.URL); err == nil {
			out = map[string]string{"address": net.JoinHostPort(p.Host(), strconv.Itoa(int(p.Port)))}
		}
		if p == nil || p.Scheme != ProxySOCKS5 || len(spec.UpstreamProxy.ResolveThere) > 0 {
			ps.Add("/upstream_proxy", "is not one of SOCKS5 for names that are resolved here; the other dialect knows no other")
		}
	}
	for _, r := range rules {
		if r.Login == nil || r.Login.Proxy == nil {
			rest = append(rest, r)
			continue
		}
		at := document.Pointer("/attach_headers", r.Pattern.String())
		switch l := r.Login.Proxy; {
		case p == nil || p.Name != r.Pattern.Name() || p.Port != r.Pattern.Port():
			ps.Add(at, "is the login to a proxy that the policy does not use")
		case !l.isFor(ProxySOCKS5):
			ps.Add(at, "is not for SOCKS5, and the other dialect knows no other proxies")
		case l.Source != "":
			ps.Add(at, "has a source, and the other dialect knows literal values alone")
		default:
			out["username"], out["password"] = l.User, l.Password.Reveal()
		}
	}
	return out, rest
}
