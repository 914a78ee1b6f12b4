package name

// Reason is the reason of a decision, from a closed set. Log, metric labels and answers contain the same string, and
// docs/reasons.md explains each.
type Reason string

// Reasons of an allowing decision.
const (
	ReasonAllowAll      Reason = "allow_all"      // mode allow-all
	ReasonAllowedCIDR   Reason = "allowed_cidr"   // the address is in allowed_cidrs
	ReasonAllowedDomain Reason = "allowed_domain" // the name matches allowed_domains
	ReasonNotDenied     Reason = "not_denied"     // custom with denied lists only, and no match
	ReasonRequestRule   Reason = "request_rule"   // a request rule decided (either verdict)
	ReasonURL           Reason = "url"            // a public URL with a valid credential, or without authentication
	ReasonWouldDeny     Reason = "would_deny"     // the policy denies it, but is only audited
	ReasonGateway       Reason = "gateway"        // the gateway itself answers the box, at policy.boxgate.internal
	ReasonUnnamed       Reason = "unnamed"        // connections that were allowed and counted, but not logged separately
)

// Reasons of a denying decision that the policy itself gives.
const (
	ReasonUnknownBox     Reason = "unknown_box"
	ReasonNoPolicy       Reason = "no_policy"
	ReasonProtectedRange Reason = "protected_range"
	ReasonDeniedDomain   Reason = "denied_domain"
	ReasonDeniedCIDR     Reason = "denied_cidr"
	ReasonDenyAll        Reason = "deny_all"
	ReasonNotAllowed     Reason = "not_allowed"
	ReasonHeaderRule     Reason = "header_rule"    // a header rule refuses the request
	ReasonQuota          Reason = "quota"          // the box has used up its quota of bytes sent and received
	ReasonSourceAddress  Reason = "source_address" // the box has no usable source address of this family
)

// Reasons of denials by the data path, before or after the decision of the policy.
const (
	ReasonSpoofed           Reason = "spoofed_source"       // the source address or interface is not the box's
	ReasonHostPort          Reason = "host_port"            // a port of the host other than the gateway's DNS and proxy
	ReasonProtocol          Reason = "protocol"             // a protocol that is forbidden, or on this port
	ReasonNoName            Reason = "no_name"              // no SNI or Host, and no address rule allows
	ReasonAuthorityMismatch Reason = "authority_mismatch"   // Host or :authority is not the SNI (421)
	ReasonBadRequest        Reason = "bad_request"          // malformed or ambiguous framing (400)
	ReasonAmbiguousPath     Reason = "ambiguous_path"       // a path that servers interpret differently, on a host whose rules look at paths
	ReasonAmbiguousRequest  Reason = "ambiguous_request"    // a request that servers interpret differently, so that it is uncertain whether a header rule covers it
	ReasonUnreadableContent Reason = "unreadable_content"   // a rule depends on a body that cannot be read: messages of MCP or GraphQL (403), requests to models (400, 413)
	ReasonPlaceholderLeak   Reason = "placeholder_leak"     // a placeholder where its value does not belong (403)
	ReasonModelBudget       Reason = "model_budget"         // a request to a model exceeds a budget of tokens or money (429)
	ReasonModelDenied       Reason = "model_denied"         // a metered rule does not allow the model, or the request cannot be metered (403)
	ReasonSecretUnavailable Reason = "secret_unavailable"   // a secret of a header rule is unavailable (502)
	ReasonFleetFenced       Reason = "fleet_fenced"         // the header rule of the host is the fleet's, and this host is cut off from the fleet (502)
	ReasonUnsignable        Reason = "unsignable"           // a request that cannot be signed as the rule of its host requires (400, 413)
	ReasonUnscrubbable      Reason = "unscrubbable"         // a response in which secrets cannot be masked (502)
	ReasonMethod            Reason = "method"               // TRACE, TRACK, CONNECT inside an intercepted connection
	ReasonPeekTimeout       Reason = "peek_timeout"         // no complete first message before the deadline
	ReasonPeekSize          Reason = "peek_size"            // first message larger than the cap
	ReasonLimit             Reason = "limit"                // a per-box limit: connections, queries, interceptions
	ReasonUnresolved        Reason = "upstream_unresolved"  // the allowed name has no allowed address
	ReasonUnreachable       Reason = "upstream_unreachable" // dialling failed
	ReasonUpstreamTLS       Reason = "upstream_tls"         // the upstream's certificate could not be verified (502)
	ReasonUpstreamHTTP      Reason = "upstream_http"        // the upstream broke the protocol (502)
	ReasonUpstreamLogin     Reason = "upstream_login"       // the upstream refused the gateway's login
	ReasonUpstreamProxy     Reason = "upstream_proxy"       // the upstream proxy could not be used, or refused (502)
	ReasonClientTLS         Reason = "client_tls"           // the box did not complete the TLS handshake with its CA
	ReasonPolicyChanged     Reason = "policy_changed"       // cut because the policy tightened
	ReasonInternal          Reason = "internal"             // a fault of the gateway, which ended only this connection
	ReasonURLUnknown        Reason = "url_unknown"          // no such public URL (404)
	ReasonURLAuth           Reason = "url_auth"             // missing or wrong credential (401)
	ReasonURLOrigin         Reason = "url_origin"           // another site used the credential in a browser (403)
	ReasonURLUnavailable    Reason = "url_unavailable"      // the box does not answer on that port (502)
)

// IsFailure reports whether the reason is a server that failed or did not answer, rather than a refusal by the gateway.
func (r Reason) IsFailure() bool {
	switch r {
	case ReasonUnresolved, ReasonUnreachable, ReasonUpstreamTLS, ReasonUpstreamHTTP, ReasonUpstreamLogin, ReasonUpstreamProxy, ReasonURLUnavailable:
		return true
	}
	return false
}

// Reasons returns the whole set, in the order of the constants above.
func Reasons() []Reason {
	return []Reason{
		ReasonAllowAll, ReasonAllowedCIDR, ReasonAllowedDomain, ReasonNotDenied, ReasonRequestRule, ReasonURL, ReasonGateway, ReasonWouldDeny, ReasonUnnamed,
		ReasonUnknownBox, ReasonNoPolicy, ReasonProtectedRange, ReasonDeniedDomain, ReasonDeniedCIDR, ReasonDenyAll,
		ReasonNotAllowed, ReasonHeaderRule, ReasonQuota, ReasonSourceAddress,
		ReasonSpoofed, ReasonHostPort, ReasonProtocol, ReasonNoName, ReasonAuthorityMismatch, ReasonBadRequest,
		ReasonAmbiguousPath, ReasonAmbiguousRequest, ReasonUnreadableContent, ReasonPlaceholderLeak, ReasonModelBudget, ReasonModelDenied, ReasonSecretUnavailable, ReasonFleetFenced, ReasonUnsignable, ReasonUnscrubbable, ReasonMethod, ReasonPeekTimeout, ReasonPeekSize, ReasonLimit, ReasonUnresolved, ReasonUnreachable,
		ReasonUpstreamTLS, ReasonUpstreamHTTP, ReasonUpstreamLogin, ReasonUpstreamProxy, ReasonClientTLS, ReasonPolicyChanged, ReasonInternal,
		ReasonURLUnknown, ReasonURLAuth, ReasonURLOrigin, ReasonURLUnavailable,
	}
}
