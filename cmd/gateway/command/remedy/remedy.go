// Package remedy says in a sentence what to do about a denial, for those who see one on a terminal. docs/reasons.md has
// more about each reason.
package remedy

import (
	"net"
	"strconv"
	"strings"

	"boxgate/audit"
	"boxgate/policy"
)

// elsewhere is said of a reason that has no remedy here, as one of a newer gateway has none.
const elsewhere = "docs/reasons.md says what it means, and what to do about it"

// For returns what to do about a denial; "" for what is none.
func For(e audit.Event) string {
	if e.Verdict != policy.Deny {
		return ""
	}
	text, ok := remedies[e.Reason]
	if !ok {
		return elsewhere
	}
	if strings.Contains(text, "DESTINATION") && Destination(e) == "" {
		return "see what the policy allows: gateway policy get " + boxOf(e)
	}
	return strings.NewReplacer("BOX", boxOf(e), "DESTINATION", Destination(e)).Replace(text)
}

// Plain is For without a gateway that could be asked or told anything.
func Plain(e audit.Event) string {
	if text := remedies[e.Reason]; text != "" && !strings.Contains(text, "gateway ") {
		return text
	}
	return elsewhere
}

// remedies are the sentences, in which BOX and DESTINATION stand for those of the event.
var remedies = map[policy.Reason]string{
	policy.ReasonUnknownBox:        "right after a box was deleted this is a late packet; otherwise find out what sends from that address",
	policy.ReasonNoPolicy:          "set the policy again: gateway policy set BOX POLICY",
	policy.ReasonProtectedRange:    "no policy opens this range; if boxes must reach it, list it in network.protected_exempt of the configuration",
	policy.ReasonDeniedDomain:      "the policy denies it by name; to lift that: gateway policy allow BOX DESTINATION",
	policy.ReasonDeniedCIDR:        "the policy denies that address; look at denied_cidrs: gateway policy edit BOX",
	policy.ReasonDenyAll:           "the policy denies everything; to allow this: gateway policy allow BOX DESTINATION",
	policy.ReasonNotAllowed:        "to allow it: gateway policy allow BOX DESTINATION",
	policy.ReasonHeaderRule:        "a header rule refuses such requests; see the rules: gateway headers list --box BOX",
	policy.ReasonRequestRule:       "a request rule refuses it; see the rules: gateway policy get BOX",
	policy.ReasonSpoofed:           "something in the box forges addresses, or a network inside the box is not translated to the box's address",
	policy.ReasonHostPort:          "boxes reach nothing on the host; run the service elsewhere",
	policy.ReasonProtocol:          "QUIC clients fall back to TCP; other protocols need their address in allowed_cidrs",
	policy.ReasonNoName:            "use a client that sends SNI, or allow the address: gateway policy allow BOX ADDRESS",
	policy.ReasonAuthorityMismatch: "the client must open a connection for each host",
	policy.ReasonBadRequest:        "the request is malformed or ambiguous, and is never repaired: mend the client",
	policy.ReasonAmbiguousPath:     "send the path without dot segments, repeated slashes and the like",
	policy.ReasonAmbiguousRequest:  "send each parameter and header once, spelled as in the rule",
	policy.ReasonPlaceholderLeak:   "a placeholder went where its value does not belong; if that host should get the value, add it to its rule: gateway headers set --box BOX",
	policy.ReasonSecretUnavailable: "the source of the secret fails; see: gateway secret list",
	policy.ReasonUnsignable:        "the request cannot be signed as the rule of its host asks; mostly, send X-Amz-Content-Sha256: UNSIGNED-PAYLOAD or the hash of the body",
	policy.ReasonUnscrubbable:      "the response cannot be searched for secrets; turn that coding off, or remove scrub from the rule",
	policy.ReasonMethod:            "TRACE, TRACK and CONNECT are always refused where requests are judged",
	policy.ReasonPeekTimeout:       "the client sent no complete first message; where the server speaks first, resolve the name by DNS, or allow the address",
	policy.ReasonPeekSize:          "no ordinary client begins with so large a message: look at what runs there",
	policy.ReasonLimit:             "find out what opens so many; the limits are under limits in the configuration",
	policy.ReasonSourceAddress:     "the box has no address to leave from: look at its source addresses (gateway box get), network.sources, and ip addr",
	policy.ReasonQuota:             "the box has used up limits.quota of the configuration; it may go on when the period is over",
	policy.ReasonUnresolved:        "the name has no address that may be dialled: check it, and the upstream DNS servers",
	policy.ReasonUnreachable:       "check the destination, and the host's own connectivity",
	policy.ReasonUpstreamTLS:       "the server's certificate could not be verified; add a private CA to proxy.upstream_ca_files",
	policy.ReasonUpstreamProxy:     "the upstream proxy could not be used: look at the error of the event, and try the proxy from the host",
	policy.ReasonUpstreamLogin:     "the server took no login with these credentials: look at the error of the event",
	policy.ReasonUpstreamHTTP:      "the server broke the protocol: look at the error of the event",
	policy.ReasonClientTLS:         "the client does not trust the box's CA; see: gateway ca --box BOX",
	policy.ReasonPolicyChanged:     "intended: the new policy denies it",
	policy.ReasonInternal:          "a bug of the gateway: report it with this line",
	policy.ReasonURLUnknown:        "there is no such public URL; see: gateway url list BOX",
	policy.ReasonURLAuth:           "send the credential that was shown when the URL was made, or make it anew: gateway url create BOX PORT",
	policy.ReasonURLOrigin:         "if the other site is yours, list it with --origin when the URL is made",
	policy.ReasonURLUnavailable:    "start the server in the box, listening on all of its addresses",
}

func boxOf(e audit.Event) string {
	switch {
	case e.Box == "":
		return "BOX"
	case e.BoxName != "" && !strings.ContainsFunc(e.BoxName, func(r rune) bool { return !strings.ContainsRune(plain, r) }):
		return e.BoxName
	}
	return string(e.Box)
}

// plain are the characters that names of boxes have, and that a shell reads as they are.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// Destination is what `gateway policy allow` takes for the event: the name with its port, or the address. "" if it is neither, or
// could be read as something else by a shell.
func Destination(e audit.Event) string {
	if e.Name == "" {
		if !e.Addr.IsValid() {
			return ""
		}
		return e.Addr.String()
	}
	name, err := policy.ParseName(e.Name)
	switch {
	case err != nil:
		return ""
	case e.Port == 0:
		return name.String()
	}
	return net.JoinHostPort(name.String(), strconv.Itoa(int(e.Port)))
}
