package config

import (
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// AdminTLS are the files of the certificate of admin.listen.
type AdminTLS struct {
	Cert string `yaml:"cert"` // PEM, with intermediate certificates; empty: plain HTTP
	Key  string `yaml:"key"`  // PEM
}

// Enabled reports whether admin.listen speaks TLS.
func (t AdminTLS) Enabled() bool { return t.Cert != "" }

// URL returns the address of the TCP listener of the admin API as a URL for this host; "" if there is none.
func (a Admin) URL() string {
	if a.Listen == "" {
		return ""
	}
	scheme, address := "http://", a.Listen
	if a.TLS.Enabled() {
		scheme = "https://"
	}
	if host, port, err := net.SplitHostPort(address); err == nil && (host == "" || host == "0.0.0.0" || host == "::") {
		address = net.JoinHostPort("localhost", port) // the API refuses the Host of no address
	}
	return scheme + address
}

// IsPrivate reports whether only this host can read what is sent over the TCP listener: it is on loopback, or has TLS.
func (a Admin) IsPrivate() bool {
	host, _, err := net.SplitHostPort(a.Listen)
	return a.TLS.Enabled() || err == nil && isLoopback(host)
}

// check finds values that no gateway could serve.
func (a Admin) check(fail func(key, format string, args ...any), secrets Secrets) {
	a.checkTLS(fail)
	a.checkOIDC(fail, secrets)
	a.Audit.check("admin.audit", false, fail)
	if a.Silence != 0 && (a.Silence < time.Second || a.Silence > 5*time.Minute) { // 0: the default
		fail("admin.silence", "%v is out of range; use 1s to 5m", a.Silence)
	}
}

// checkTLS finds files that are of no use.
func (a Admin) checkTLS(fail func(key, format string, args ...any)) {
	switch {
	case (a.TLS.Cert == "") != (a.TLS.Key == ""):
		fail("admin.tls", "has one of cert and key; set both, or neither")
	case a.TLS.Enabled() && a.Listen == "":
		fail("admin.tls", "has no effect without admin.listen; set that, or remove admin.tls")
	}
	for _, host := range a.Hosts {
		if strings.ContainsAny(host, ":/ ") && net.ParseIP(host) == nil {
			fail("admin.hosts", "%q is not a host name without port and scheme", host)
		}
	}
}

// AdminOIDC configures an identity provider with whose accounts people can sign in to the dashboard (OpenID Connect).
type AdminOIDC struct {
	Issuer   string `yaml:"issuer"` // empty: only API keys
	ClientID string `yaml:"client_id"`
	// ClientSecret is the name of an entry of the section secrets.
	ClientSecret string   `yaml:"client_secret"`
	Scopes       []string `yaml:"scopes"`
	GroupsClaim  string   `yaml:"groups_claim"`
	// RedirectURL is the redirect URI at the provider: the address of the dashboard and [AdminReturnPath].
	RedirectURL string `yaml:"redirect_url"`
	// Groups are the roles of people in groups.
	Groups map[string]string `yaml:"groups"`
}

// AdminReturnPath is the path of the redirect URL.
const AdminReturnPath = "/ui/oidc/callback"

// GroupRoles are the roles that a group can have. The other roles are about boxes of an API key.
var GroupRoles = []string{"admin", "approver", "read-only", "auditor"}

// checkOIDC finds values that make every sign-in fail.
func (a Admin) checkOIDC(fail func(key, format string, args ...any), secrets Secrets) {
	o := a.OIDC
	if o.Issuer == "" {
		if o.ClientID != "" || o.ClientSecret != "" || o.RedirectURL != "" || len(o.Groups) > 0 {
			fail("admin.oidc.issuer", "is not set; set it, or remove the rest of admin.oidc")
		}
		return
	}
	shared := OIDC{Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes}
	shared.check(func(key, format string, args ...any) {
		fail("admin"+strings.TrimPrefix(key, "ingress"), format, args...)
	}, secrets)
	if !a.UI || a.Listen == "" {
		fail("admin.oidc", "signs people in to the dashboard, which is off; set admin.ui and admin.listen, or remove admin.oidc")
	}
	if o.GroupsClaim == "" {
		fail("admin.oidc.groups_claim", "is empty; use the claim with a person's groups, such as groups")
	}
	if len(o.Groups) == 0 {
		fail("admin.oidc.groups", "is empty, so nobody can sign in; use such as {boxgate-admins: admin}")
	}
	for _, group := range slices.Sorted(maps.Keys(o.Groups)) {
		if !slices.Contains(GroupRoles, o.Groups[group]) || group == "" {
			fail("admin.oidc.groups", "group %q cannot have the role %q; use %s", group, o.Groups[group], strings.Join(GroupRoles, ", "))
		}
	}
	a.checkRedirect(fail)
}

// checkRedirect requires a redirect URL at which the dashboard is served and accepts its Host.
func (a Admin) checkRedirect(fail func(key, format string, args ...any)) {
	const key = "admin.oidc.redirect_url"
	u, err := url.Parse(a.OIDC.RedirectURL)
	if err != nil || u.Host == "" || a.OIDC.RedirectURL != u.Scheme+"://"+u.Host+AdminReturnPath {
		fail(key, "%q is not the address of the dashboard and %s, such as https://gate.example.org:8600%s", a.OIDC.RedirectURL, AdminReturnPath, AdminReturnPath)
		return
	}
	host := u.Hostname()
	loopback := isLoopback(host) || strings.HasSuffix(host, ".localhost")
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		fail(key, "%q is neither https nor on loopback; set admin.tls, or put a proxy with TLS in front", a.OIDC.RedirectURL)
	}
	_, err = netip.ParseAddr(host)
	if !loopback && err != nil && !slices.ContainsFunc(a.Hosts, func(h string) bool { return strings.EqualFold(strings.TrimSuffix(h, "."), host) }) {
		fail(key, "the dashboard refuses the name %s; add it to admin.hosts", host)
	}
}
