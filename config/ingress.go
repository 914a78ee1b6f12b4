package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Domains list which API keys may give their URLs custom host names below a domain.
type Domains []Domain

// Domain is one entry of the list.
type Domain struct {
	Suffix string   `yaml:"suffix"` // covers this name and all names below it
	Keys   []string `yaml:"keys"`   // IDs or names of API keys; empty: only admin keys
}

// ForName returns the entry with the longest suffix that covers a name, or nil.
func (d Domains) ForName(n name.Name) *Domain {
	var found *Domain
	for i := range d {
		suffix, err := name.Parse(d[i].Suffix)
		if err == nil && n.IsWithin(suffix) && (found == nil || len(suffix.String()) > len(found.Suffix)) {
			found = &d[i]
		}
	}
	return found
}

// ListsKey reports whether the entry contains an API key.
func (d *Domain) ListsKey(id, name string) bool {
	return slices.ContainsFunc(d.Keys, func(k string) bool { return k != "" && (k == id || k == name) })
}

func (d Domains) check(fail func(key, format string, args ...any)) {
	const key = "ingress.domains"
	seen := map[name.Name]bool{}
	for _, row := range d {
		suffix, err := name.Parse(row.Suffix)
		switch {
		case err != nil:
			fail(key, "suffix %q is not a domain such as example.org; it is for all names at and below it", row.Suffix)
		case row.Suffix != suffix.String():
			fail(key, "suffix %q must be written as %q", row.Suffix, suffix)
		case seen[suffix]:
			fail(key, "suffix %q is listed twice; list all keys in one entry", row.Suffix)
		}
		seen[suffix] = true
		if slices.ContainsFunc(row.Keys, func(k string) bool { return strings.TrimSpace(k) == "" }) {
			fail(key, "suffix %q has a key without an ID or name; see gateway api-key list", row.Suffix)
		}
	}
}

// Values of [Ingress] Names.
const (
	namesFlat   = "flat"
	namesNested = "nested"
)

// HostName returns the host name of the public URL of a box's port: {box}-{port}.{domain}, or {port}.{box}.{domain} if
// names are nested. Nested, the URLs of each box have their own parent domain.
func (i Ingress) HostName(id policy.BoxID, port uint16) string {
	if i.Names == namesNested {
		return fmt.Sprintf("%d.%s.%s", port, id, i.Domain)
	}
	return fmt.Sprintf("%s-%d.%s", id, port, i.Domain)
}

// ParseHostName returns the box and the port of a host name, in lower case, of the form of [Ingress.HostName] or
// {port}-{box}.{domain}, whichever the form of the names. An ID has 16 hexadecimal digits and a port five digits at most, so
// that no host name has two meanings.
func (i Ingress) ParseHostName(host string) (id policy.BoxID, port uint16, ok bool) {
	rest, ok := strings.CutSuffix(host, "."+i.Domain)
	if !ok {
		return "", 0, false
	}
	if first, last, found := strings.Cut(rest, "-"); found {
		if port, ok = parsePort(first); ok && isBoxID(last) {
			return policy.BoxID(last), port, true
		}
		if port, ok = parsePort(last); ok && isBoxID(first) && i.Names != namesNested {
			return policy.BoxID(first), port, true
		}
		return "", 0, false
	}
	first, last, found := strings.Cut(rest, ".")
	if port, ok = parsePort(first); ok && found && isBoxID(last) && i.Names == namesNested {
		return policy.BoxID(last), port, true
	}
	return "", 0, false
}

// parsePort parses a port in the form that [Ingress.HostName] writes.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && s[0] != '0' && s[0] != '+'
}

// isBoxID reports whether a text has the form of the IDs that the gateway makes.
func isBoxID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 16
}

// OwnName returns the host name {label}.{domain}, which no box has.
func (i Ingress) OwnName(label string) string { return label + "." + i.Domain }

// CoversAllNames reports whether certificates cover every host name {port}-{box}.{domain}. Otherwise each name needs its own
// certificate from an issuer, so that only the names of URLs can have one.
func (i Ingress) CoversAllNames() bool { return i.TLS.Mode != "acme" || i.TLS.ACME.DNS01.Enabled() }

func (i Ingress) checkNames(fail func(key, format string, args ...any)) {
	switch {
	case i.Names != namesFlat && i.Names != namesNested:
		fail("ingress.names", "%q is unknown; use %s for {box}-{port}.{domain}, or %s for {port}.{box}.{domain}", i.Names, namesFlat, namesNested)
	case i.Names == namesNested && i.TLS.Mode == "files":
		fail("ingress.names", "a certificate from files cannot cover the domains of all boxes; use %s, or ingress.tls.mode acme or internal", namesFlat)
	}
}

// unforwardable are request fields that no configuration passes from a visitor to a box: the gateway sets them itself,
// they concern a single connection, or other settings govern them. Names that begin with "proxy-" belong to them too.
var unforwardable = []string{
	"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded",
	"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
	"host", "content-length", "expect", "authorization", "cookie", "referer", "x-box-api-key",
}

func (i Ingress) checkForwardFields(fail func(key, format string, args ...any)) {
	const key = "ingress.forward_fields"
	seen := map[string]bool{}
	for _, name := range i.ForwardFields {
		lower := strings.ToLower(name)
		spelled := strings.Map(normalizeFieldRune, lower)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			fail(key, "%q is not the name of a header field such as X-Auth-Token; there are no patterns", name)
		case slices.Contains(unforwardable, spelled) || strings.HasPrefix(spelled, "proxy-"):
			fail(key, "%q cannot be handed on as a visitor sent it; remove it from the list", name)
		case seen[lower]:
			fail(key, "%q is listed twice; keep one", name)
		}
		seen[lower] = true
	}
}

// checkTokenHeaders finds fields that cannot have a token: boxes never get these fields.
func (i Ingress) checkTokenHeaders(fail func(key, format string, args ...any)) {
	const key = "ingress.token_headers"
	if len(i.TokenHeaders) > mostTokenHeaders {
		fail(key, "has more than %d entries", mostTokenHeaders)
	}
	seen := map[string]bool{}
	for _, name := range i.TokenHeaders {
		spelled := strings.Map(normalizeFieldRune, strings.ToLower(name))
		forwarded := slices.ContainsFunc(i.ForwardFields, func(other string) bool { return strings.EqualFold(other, name) })
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			fail(key, "%q is not the name of a header field such as X-Port-Token", name)
		case slices.Contains(unforwardable, spelled) || slices.Contains(unmistakable, spelled) || strings.HasPrefix(spelled, "proxy-") || strings.HasPrefix(spelled, "sec-"):
			fail(key, "%q has another meaning; use a name such as X-Port-Token", name)
		case forwarded:
			fail(key, "%q is in ingress.forward_fields too; remove it from one of them", name)
		case seen[spelled]:
			fail(key, "%q is listed twice; keep one", name)
		}
		seen[spelled] = true
	}
}

// mostTokenHeaders bounds the list: every request is searched for each of them.
const mostTokenHeaders = 8

// unmistakable are request fields that applications need, besides unforwardable.
var unmistakable = []string{"accept", "accept-encoding", "accept-language", "content-type", "content-encoding", "origin", "user-agent", "range"}

// normalizeFieldRune maps everything but letters and digits to "-", as some servers do when they read field names.
func normalizeFieldRune(r rune) rune {
	if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
		return r
	}
	return '-'
}

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
