package remedy

import "boxgate/policy/name"

// meanings describes each reason in a sentence about the decision. docs/reasons.md says more.
var meanings = map[name.Reason]string{
	name.ReasonAllowAll:          "The policy allows everything outside the protected ranges.",
	name.ReasonAllowedCIDR:       "The address is in allowed_cidrs of the policy.",
	name.ReasonAllowedDomain:     "The name matches allowed_domains of the policy.",
	name.ReasonNotDenied:         "The policy only has denied entries, and no entry matches.",
	name.ReasonRequestRule:       "A request rule decided.",
	name.ReasonURL:               "The visitor may use the public URL.",
	name.ReasonGateway:           "The gateway itself answered the box.",
	name.ReasonWouldDeny:         "The policy denies it, but is only audited, so the traffic passed.",
	name.ReasonUnnamed:           "Connections that were allowed and counted, but not recorded one by one.",
	name.ReasonUnknownBox:        "The traffic does not come from a box that the gateway knows.",
	name.ReasonNoPolicy:          "The box has no valid policy, so everything is denied.",
	name.ReasonProtectedRange:    "The address is in a protected range: private, link-local, metadata, the host or another box.",
	name.ReasonDeniedDomain:      "The name matches denied_domains of the policy.",
	name.ReasonDeniedCIDR:        "The address is in denied_cidrs of the policy.",
	name.ReasonDenyAll:           "The policy denies everything.",
	name.ReasonNotAllowed:        "No entry of the policy allows the destination.",
	name.ReasonHeaderRule:        "A header rule refuses such requests.",
	name.ReasonQuota:             "The box has used up its quota of bytes.",
	name.ReasonSourceAddress:     "The box has no address to send from.",
	name.ReasonSpoofed:           "The source address is not that of the box.",
	name.ReasonHostPort:          "The destination is a port of the gateway's host, where boxes reach only the gateway itself.",
	name.ReasonProtocol:          "The protocol is not permitted, or not on this port.",
	name.ReasonNoName:            "The connection names no host, and its address alone is not allowed.",
	name.ReasonAuthorityMismatch: "The request names another host than the connection.",
	name.ReasonBadRequest:        "The request is malformed or ambiguous.",
	name.ReasonAmbiguousPath:     "Servers interpret the path in different ways, and rules of the host look at paths.",
	name.ReasonAmbiguousRequest:  "Servers interpret the request in different ways, so it is uncertain whether a header rule covers it.",
	name.ReasonUnreadableContent: "A rule depends on the body of the request, which cannot be read.",
	name.ReasonPlaceholderLeak:   "The request carries a placeholder to a place where its secret does not belong.",
	name.ReasonModelBudget:       "The request to a model could cost more than a budget has left.",
	name.ReasonModelDenied:       "The rule of the host does not allow the model, or the tokens of the request cannot be counted.",
	name.ReasonSecretUnavailable: "A secret of a header rule cannot be had.",
	name.ReasonFleetFenced:       "The header rule of the host is the fleet's, and the gateway is cut off from the fleet.",
	name.ReasonUnsignable:        "The request cannot be signed as the rule of its host requires.",
	name.ReasonUnscrubbable:      "Secrets cannot be masked in the response.",
	name.ReasonMethod:            "The method is always refused where requests are judged.",
	name.ReasonPeekTimeout:       "The client sent no complete first message in time.",
	name.ReasonPeekSize:          "The first message of the client is too large.",
	name.ReasonLimit:             "The box has reached one of its limits.",
	name.ReasonUnresolved:        "The name is allowed, but has no address that is.",
	name.ReasonUnreachable:       "The policy allows it, but the server does not answer.",
	name.ReasonUpstreamTLS:       "The certificate of the server cannot be verified.",
	name.ReasonUpstreamHTTP:      "The server broke the protocol.",
	name.ReasonUpstreamLogin:     "The server refused the login of the gateway.",
	name.ReasonUpstreamProxy:     "The upstream proxy cannot be used, or refused.",
	name.ReasonClientTLS:         "The client in the box did not complete the TLS handshake with the gateway.",
	name.ReasonPolicyChanged:     "The connection was allowed, and was cut because the policy now denies it.",
	name.ReasonInternal:          "A fault of the gateway ended this connection.",
	name.ReasonURLUnknown:        "There is no such public URL.",
	name.ReasonURLAuth:           "The visitor showed no credential of the public URL, or a wrong one.",
	name.ReasonURLOrigin:         "A page of another site used the credential of the public URL.",
	name.ReasonURLUnavailable:    "The box does not answer on the port of the public URL.",
}

// Meaning describes a reason in a sentence, or refers to the documentation for a reason of a newer gateway.
func Meaning(r name.Reason) string {
	if text, ok := meanings[r]; ok {
		return text
	}
	return "docs/reasons.md explains this reason."
}
