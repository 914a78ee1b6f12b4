package ingress

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"boxgate/audit"
	"boxgate/ingress/signin"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Challenge answers the HTTP-01 challenges of ACME: it returns the body for a path at a host, if there is one.
type Challenge func(host, path string) (body string, ok bool)

// redirection redirects plain HTTP requests for known URLs to HTTPS. It neither checks credentials nor forwards requests.
type redirection struct {
	httpsPort uint16
	challenge Challenge // may be nil
}

// challengePath is the prefix where issuers look for answers to HTTP-01 challenges (RFC 8555, 8.3). Requests for it are not
// redirected: issuers follow redirects, so the box could answer, and obtain its own certificates for the host.
const challengePath = "/.well-known/acme-challenge/"

// answer answers a request for a target. The gateway's parameters have crossed the network in the clear, so the redirect omits
// them.
func (r *redirection) answer(g *core, v *visit, target string) {
	host, ok := hostOf(&v.asked)
	if ok && r.challenge != nil && v.method == http.MethodGet {
		if body, ok := r.challenge(host, v.path); ok {
			v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, name.ReasonURL, audit.ActionAnswer
			v.client.reply(http.StatusOK, [][2]string{{"Content-Type", "application/octet-stream"}}, []byte(body))
			return
		}
	}
	if !ok {
		v.refuse(http.StatusMisdirectedRequest, name.ReasonURLUnknown, "This address is not a public URL.")
		return
	}
	if strings.HasPrefix(v.path, challengePath) {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "The gateway has no such challenge.")
		return
	}
	to, ok := g.URLs.Lookup(host)
	if !ok || to.Protocol == TCP {
		v.refuse(http.StatusNotFound, name.ReasonURLUnknown, "There is no such public URL.")
		return
	}
	v.event.Name, v.event.Box = host, to.Box
	if g.tallies.of(to.ID, v.network).request(v.began) {
		v.tooMany()
		return
	}
	v.event.Verdict, v.event.Reason, v.event.Action = policy.Allow, name.ReasonURL, audit.ActionAnswer
	if r.httpsPort != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(r.httpsPort)))
	}
	v.client.reply(http.StatusPermanentRedirect, [][2]string{{"Location", "https://" + host + signin.Clean(target)}, {"Cache-Control", "no-store"}}, nil)
}
