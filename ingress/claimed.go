package ingress

import (
	"slices"
	"strings"

	"boxgate/internal/h1"
)

// claimedBeginnings begin the names of fields in which proxies before a server say who the client is or what it asked for.
// Such fields are families: products and their versions add names, and applications believe them (docs/urls.md lists
// families and names). "proxy" alone is httpoxy (CVE-2016-5385).
var claimedBeginnings = []string{
	"remote-", "x-remote-", "x-forwarded", "x-real-", "x-original-", "x-auth", "x-webauth-", "x-user", "ssl-", "x-ssl-",
	"x-client-cert", "x-tls-client-", "x-envoy-", "proxy-", "x-proxy-", "tailscale-", "cf-access-", "x-goog-authenticated-", "x-goog-iap-",
	"x-appengine-", "x-amzn-oidc-", "x-amzn-mtls-", "x-ms-client-", "x-ms-token-", "x-arr-", "x-pomerium-", "x-vouch-",
	"x-consumer-", "x-sandstorm-", "x-replit-user-", "ngrok-auth-", "oidc-", "shib-",
}

// claimedNames are further such fields.
var claimedNames = []string{
	"forwarded", "proxy", "x-client-ip", "client-ip", "true-client-ip", "x-cluster-client-ip", "x-host", "x-originating-ip",
	"x-rewrite-url", "x-scheme", "x-url-scheme", "x-script-name", "script-name", "path-info", "x-proxyuser-ip", "wl-proxy-client-ip",
	"cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-ipcountry", "cf-visitor", "fastly-client-ip", "fastly-ssl",
	"x-azure-clientip", "x-azure-socketip", "x-nf-client-connection-ip", "fly-client-ip", "x-vercel-forwarded-for",
	"x-vercel-ip-country", "x-vercel-proxied-for", "akamai-origin-hop", "front-end-https", "x-ssl", "client-cert", "client-cert-chain",
	"x-client-verify", "x-client-dn", "x-email", "x-groups", "x-jwt-assertion", "x-rh-identity", "x-endpoint-api-userinfo",
	"x-apigateway-api-userinfo", "x-credential-identifier", "x-anonymous-consumer", "kubeflow-userid", "sm-user", "iv-user",
	"iv-groups", "iv-creds",
}

// ownNames are the fields that appendForwarded sets. No configuration lets a visitor set them.
var ownNames = []string{"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded"}

// claim is a name, or the beginning of names, in lower case.
type claim struct {
	name   string
	begins bool
}

// claims are the claimed names by their first letter, and those that begin with "x-", without that, by the next.
var claims = func() (by [2][26][]claim) {
	for i, list := range [][]string{claimedBeginnings, claimedNames} {
		for _, name := range list {
			after := 0
			if name[:2] == "x-" {
				after, name = 1, name[2:]
			}
			of := &by[after][name[0]-'a']
			*of = append(*of, claim{name: name, begins: i == 0})
		}
	}
	return by
}()

// folded are the bytes of field names as servers that turn fields into variables (CGI, WSGI, Rack) may read them: in one
// case, and all that is no letter or digit as one byte. Most do so to "-" alone, some to "." as well, lighttpd to everything.
var folded = func() (to [256]byte) {
	for i := range to {
		switch c := byte(i); {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			to[i] = c
		case 'A' <= c && c <= 'Z':
			to[i] = c + 'a' - 'A'
		default:
			to[i] = '-'
		}
	}
	return to
}()

// isName reports whether an application may take a field for the one called want, which is in lower case.
func isName[S []byte | string](name S, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i := range len(want) {
		if folded[name[i]] != want[i] {
			return false
		}
	}
	return true
}

// claimed reports whether a field says who the client is or what it asked for. It is called for each field of each
// request, and does not allocate.
func claimed[S []byte | string](name S) bool {
	rest, after := name, 0
	if len(name) > 2 && folded[name[0]] == 'x' && folded[name[1]] == '-' {
		rest, after = name[2:], 1
	}
	if len(rest) == 0 {
		return false
	}
	letter := folded[rest[0]] - 'a'
	if letter >= 26 {
		return false
	}
	of := claims[after][letter]
	for i := range of {
		n := len(of[i].name)
		if (len(rest) == n || len(rest) > n && of[i].begins) && isName(rest[:n], of[i].name) {
			return true
		}
	}
	return false
}

// lets reports whether the operator lets a claimed field pass, of names in lower case: by its exact name, since another spelling of it
// would be a second field to the gateway and the same to an application.
func lets(names []string, name []byte) bool {
	return slices.ContainsFunc(names, func(lower string) bool { return h1.EqualFold(name, lower) })
}

// lowered returns names in lower case, without those that the gateway sets itself, in any spelling.
func lowered(names []string) []string {
	var all []string
	for _, name := range names {
		if !slices.ContainsFunc(ownNames, func(own string) bool { return isName(name, own) }) {
			all = append(all, strings.ToLower(name))
		}
	}
	return all
}

// credentialOf reports whether a field can only be a key of the gateway, sent here by mistake.
func credentialOf[S []byte | string](name S) bool {
	return isName(name, "x-box-api-key") || isName(name, "proxy-authorization")
}

// changesMethod reports whether applications take the method of a request from a field. A signed link permits some methods.
func changesMethod[S []byte | string](name S) bool {
	return isName(name, "x-http-method-override") || isName(name, "x-http-method") || isName(name, "x-method-override")
}
