package config

import (
	"boxgate/policy"
	"boxgate/rule"
	"boxgate/rule/upstream"
)

// Upstream is the proxy through which the boxes' connections leave the host.
type Upstream struct {
	URL      string `yaml:"url"` // empty: no proxy
	Username string `yaml:"username"`
	// Password is the name of an entry of the section secrets.
	Password string `yaml:"password"`
	// ResolveThere are the domains that the proxy resolves; the gateway resolves all others.
	ResolveThere []string `yaml:"resolve_there"`
	// Direct are domains, and networks for servers requested by address, that are reached without the proxy.
	Direct []string `yaml:"direct"`
}

// Compile returns the compiled proxy; nil if not set.
func (u Upstream) Compile() (*policy.HostUpstream, error) {
	if u.URL == "" {
		return nil, nil
	}
	p, err := policy.ParseUpstream(u.URL)
	if err != nil {
		return nil, err
	}
	if u.Username != "" {
		p.Login = upstream.New("", u.Username, rule.Value{Source: u.Password})
	}
	return policy.NewHostUpstream(*p, u.ResolveThere, u.Direct)
}

func (u Upstream) check(fail func(key, format string, args ...any), secrets Secrets) {
	if u.URL == "" {
		if u.Username != "" || u.Password != "" || len(u.ResolveThere)+len(u.Direct) > 0 {
			fail("proxy.upstream.url", "is not set; set it, or remove the rest of proxy.upstream")
		}
		return
	}
	if _, err := policy.ParseUpstream(u.URL); err != nil { // not quoted: it may contain credentials
		fail("proxy.upstream.url", "%v; use one such as http://proxy.example.com:3128 or socks5://192.0.2.1:1080", err)
		return
	}
	_, known := secrets.Sources[u.Password]
	switch {
	case (u.Username == "") != (u.Password == ""):
		fail("proxy.upstream", "has one of username and password; set both, or neither")
	case u.Password != "" && !known:
		fail("proxy.upstream.password", "is not the name of an entry of secrets; add one, such as secrets: {corp-proxy: {file: /etc/boxgate/proxy-password}}, and use its name")
	}
	if err := upstream.CheckUser(u.Username); u.Username != "" && err != nil {
		fail("proxy.upstream.username", "%v", err)
	}
	if _, err := u.Compile(); err != nil {
		fail("proxy.upstream", "%v", err)
	}
}
