package name

// Reason says why a decision came out as it did. The set is closed: the same string goes to the log, the metric label
// and the answer, and docs/reasons.md explains each.
type Reason string

// Reasons of an allowing decision.
const (
	ReasonAllowAll      Reason = "allow_all"      // mode allow-all
	ReasonAllowedCIDR   Reason = "allowed_cidr"   // the address is in allowed_cidrs
	ReasonAllowedDomain Reason = "allowed_domain" // the name matches allowed_domains
	ReasonNotDenied     Reason = "not_denied"     // custom with denied lists only, and none matched
	ReasonRequestRule   Reason = "request_rule"   // a request rule decided (either verdict)
	ReasonURL           Reason = "url"            // a public URL with a valid credential, or one that needs none
	ReasonUnnamed       Reason = "unnamed"        // connections that were allowed and counted, but not named one by one
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
	ReasonQuota          Reason = "quota"          // the box has used up the bytes that it may send and receive
	ReasonSourceAddress  Reason = "source_address" // the box has no address of the host to leave from, of this family or for now
)

// Reasons of a denial that the data path gives, before or after asking the policy.
const (
	ReasonSpoofed           Reason = "spoofed_source"       // the source address or interface is not the box's
	ReasonHostPort          Reason = "host_port"            // a port of the host other than the gateway's DNS and proxy
	ReasonProtocol          Reason = "protocol"             // a protocol that boxes may not speak, or not on this port
	ReasonNoName            Reason = "no_name"              // no SNI or Host, and no address rule allows
	ReasonAuthorityMismatch Reason = "authority_mismatch"   // Host or :authority is not the SNI (421)
	ReasonBadRequest        Reason = "bad_request"          // malformed or ambiguous framing (400)
	ReasonAmbiguousPath     Reason = "ambiguous_path"       // a path that servers read in different ways, where a rule looks at the paths of the host
	ReasonAmbiguousRequest  Reason = "ambiguous_request"    // a query, header or spelling for which servers would differ on whether a header rule is for it
	ReasonPlaceholderLeak   Reason = "placeholder_leak"     // a placeholder where its value does not belong (403)
	ReasonSecretUnavailable Reason = "secret_unavailable"   // a secret of a header rule could not be had (502)
	ReasonUnsignable        Reason = "unsignable"           // a request that cannot be signed as the rule of its host asks (400, 413)
	ReasonUnscrubbable      Reason = "unscrubbable"         // a response in which secrets cannot be masked (502)
	ReasonMethod            Reason = "method"               // TRACE, TRACK, CONNECT inside an intercepted connection
	ReasonPeekTimeout       Reason = "peek_timeout"         // no complete first message before the deadline
	ReasonPeekSize          Reason = "peek_size"            // first message larger than the cap
	ReasonLimit             Reason = "limit"                // a per-box limit: connections, queries, interceptions
	ReasonUnresolved        Reason = "upstream_unresolved"  // the allowed name has no address that may be dialled
	ReasonUnreachable       Reason = "upstream_unreachable" // dialling failed
	ReasonUpstreamTLS       Reason = "upstream_tls"         // the upstream's certificate could not be verified (502)
	ReasonUpstreamHTTP      Reason = "upstream_http"        // the upstream broke the protocol (502)
	ReasonUpstreamLogin     Reason = "upstream_login"       // the upstream refused the login that the gateway made in the place of the box
	ReasonUpstreamProxy     Reason = "upstream_proxy"       // the upstream proxy could not be used, or refused (502)
	ReasonClientTLS         Reason = "client_tls"           // the box did not complete the TLS handshake with its CA
	ReasonPolicyChanged     Reason = "policy_changed"       // cut because the policy tightened
	ReasonInternal          Reason = "internal"             // a fault of the gateway; the connection died, nothing else
	ReasonURLUnknown        Reason = "url_unknown"          // no such public URL (404)
	ReasonURLAuth           Reason = "url_auth"             // missing or wrong credential (401)
	ReasonURLOrigin         Reason = "url_origin"           // another site used the credential that a browser keeps (403)
	ReasonURLUnavailable    Reason = "url_unavailable"      // the box does not answer on that port (502)
)

// Reasons returns the whole set, in the order of the constants above.
func Reasons() []Reason {
	return []Reason{
		ReasonAllowAll, ReasonAllowedCIDR, ReasonAllowedDomain, ReasonNotDenied, ReasonRequestRule, ReasonURL, ReasonUnnamed,
		ReasonUnknownBox, ReasonNoPolicy, ReasonProtectedRange, ReasonDeniedDomain, ReasonDeniedCIDR, ReasonDenyAll,
		ReasonNotAllowed, ReasonHeaderRule, ReasonQuota, ReasonSourceAddress,
		ReasonSpoofed, ReasonHostPort, ReasonProtocol, ReasonNoName, ReasonAuthorityMismatch, ReasonBadRequest,
		ReasonAmbiguousPath, ReasonAmbiguousRequest, ReasonPlaceholderLeak, ReasonSecretUnavailable, ReasonUnsignable, ReasonUnscrubbable, ReasonMethod, ReasonPeekTimeout, ReasonPeekSize, ReasonLimit, ReasonUnresolved, ReasonUnreachable,
		ReasonUpstreamTLS, ReasonUpstreamHTTP, ReasonUpstreamLogin, ReasonUpstreamProxy, ReasonClientTLS, ReasonPolicyChanged, ReasonInternal,
		ReasonURLUnknown, ReasonURLAuth, ReasonURLOrigin, ReasonURLUnavailable,
	}
}
