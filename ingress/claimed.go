package ingress

import (
	"slices"
	"strings"

	"boxgate/relay/h1"
)

// claimedBeginnings are prefixes of fields in which a reverse proxy reports who the client is or what it requested. They are
// families: products and their versions add names, and applications trust them (docs/urls.md lists families and names).
// "proxy" alone is httpoxy (CVE-2016-5385).
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

// ownNames are the fields that appendForwarded sets. No configuration lets visitors set them.
var ownNames = []string{"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded"}

// claim is a name, or a prefix of names, in lower case.
type claim struct {
	name   string
	begins bool
}

// claims indexes the claimed names by their first letter: index 1 are names that begin with "x-", without that prefix.
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

// folded maps the bytes of field names to how servers that turn fields into variables (CGI, WSGI, Rack) may read them: to
// lower case, and all other characters to one. Most servers map only "-", some also ".", lighttpd every character that is no
// letter or digit.
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

// isName reports whether an application may read a field as the one called want, which is in lower case.
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

// claimed reports whether a field claims who the client is or what it requested. It is called for each field of each request,
// and does not allocate.
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

// lets reports whether the operator's list of names, in lower case, lets a claimed field pass. Only the exact name counts: the
// gateway would see another spelling as a second field, and an application as the same one.
func lets(names []string, name []byte) bool {
	return slices.ContainsFunc(names, func(lower string) bool { return h1.EqualFold(name, lower) })
}

// lowered returns names in lower case, without the fields that the gateway sets itself, in any spelling.
func lowered(names []string) []string {
	var all []string
	for _, name := range names {
		if !slices.ContainsFunc(ownNames, func(own string) bool { return isName(name, own) }) {
			all = append(all, strings.ToLower(name))
		}
	}
	return all
}

// credentialOf reports whether a field is for keys of the gateway, so that a visitor sent it here by mistake.
func credentialOf[S []byte | string](name S) bool {
	return isName(name, "x-box-api-key") || isName(name, "proxy-authorization")
}

// changesMethod reports whether applications take the request's method from this field. Signed links permit only some methods.
func changesMethod[S []byte | string](name S) bool {
	return isName(name, "x-http-method-override") || isName(name, "x-http-method") || isName(name, "x-method-override")
}
