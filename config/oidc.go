package config

import (
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// OIDC configures an identity provider with whose accounts visitors of public URLs can sign in (OpenID Connect).
type OIDC struct {
	Issuer   string `yaml:"issuer"` // empty: no identity provider
	ClientID string `yaml:"client_id"`
	// ClientSecret is the name of an entry of the section secrets.
	ClientSecret string   `yaml:"client_secret"`
	Scopes       []string `yaml:"scopes"`
	GroupsClaim  string   `yaml:"groups_claim"`
	// RedirectURL is the gateway's redirect URI at the provider. Empty: at the host auth of the domain.
	RedirectURL string        `yaml:"redirect_url"`
	SessionTime time.Duration `yaml:"session_time"` // 0: as long as the ID token
}

// OIDCReturnPath is the path of every redirect URL.
const OIDCReturnPath = "/.boxgate/return"

// defaultOIDC returns the defaults.
func defaultOIDC() OIDC { return OIDC{Scopes: []string{"email"}, GroupsClaim: "groups"} }

// check finds values that make every sign-in fail.
func (o *OIDC) check(fail func(key, format string, args ...any), secrets Secrets) {
	if o.Issuer == "" {
		if o.ClientID != "" || o.ClientSecret != "" || o.RedirectURL != "" {
			fail("ingress.oidc.issuer", "is not set; set it, or remove the rest of ingress.oidc")
		}
		return
	}
	u, err := url.Parse(o.Issuer)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		fail("ingress.oidc.issuer", "%q is not a URL such as https://accounts.example.org", o.Issuer)
	}
	if o.ClientID == "" {
		fail("ingress.oidc.client_id", "is not set; use the one that the provider gave to the gateway")
	}
	if _, known := secrets.Sources[o.ClientSecret]; o.ClientSecret != "" && !known {
		fail("ingress.oidc.client_secret", "is not the name of an entry of secrets; add one, such as secrets: {oidc: {file: /etc/boxgate/oidc}}, and use its name")
	}
	for _, s := range o.Scopes {
		if s == "" || strings.ContainsAny(s, " \t\"\\") {
			fail("ingress.oidc.scopes", "%q is not a scope", s)
		}
	}
	if r, err := url.Parse(o.RedirectURL); o.RedirectURL != "" && (err != nil || r.Scheme != "https" || o.RedirectURL != "https://"+r.Host+OIDCReturnPath || isAddress(r.Hostname())) {
		fail("ingress.oidc.redirect_url", "%q is not https://, a host name and %s", o.RedirectURL, OIDCReturnPath)
	}
	if o.SessionTime != 0 && (o.SessionTime < time.Minute || o.SessionTime > 720*time.Hour) {
		fail("ingress.oidc.session_time", "%v is out of range; use 1m to 720h, or 0s for as long as the provider says", o.SessionTime)
	}
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
