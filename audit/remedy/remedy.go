// Package remedy suggests a fix for a denial in one sentence, for people at a terminal or at the dashboard. docs/reasons.md
// explains each reason in detail.
package remedy

import (
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// elsewhere is the sentence for reasons without a remedy here, such as reasons of a newer gateway.
const elsewhere = "docs/reasons.md says what it means, and what to do about it"

// For returns a sentence about lifting a denial, or about a name that does not exist, or "" for other events.
func For(e audit.Event) string {
	switch {
	case e.Verdict == policy.Allow && e.RCode == audit.NXDomain:
		return "the policy allows the name, but it does not exist: check its spelling, and dns.upstreams of the configuration"
	case e.Verdict != policy.Deny:
		return ""
	}
	text, ok := remedies[e.Reason]
	if !ok {
		return elsewhere
	}
	if of := policy.ClusterRemedy(e.Rule); of != "" {
		text = of + "; see: GATEWAY policy get BOX"
	}
	text = strings.ReplaceAll(text, "OPENED", openingAdvice(e)) // first: it contains commands
	return strings.NewReplacer("GATEWAY", program(), "BOX", boxOf(e), "RULE", quoted(e.Rule), "PORT", portOf(e), "ADDRESS", addressOf(e), "NAME", nameOf(e)).Replace(text)
}

// seeAlso matches the end of a remedy that names a command to read more.
var seeAlso = regexp.MustCompile(`; see(?: the rules)?: GATEWAY .*$`)

// Plain is For without suggestions to run commands against a gateway.
func Plain(e audit.Event) string {
	text := remedies[e.Reason]
	if of := policy.ClusterRemedy(e.Rule); of != "" {
		text = of
	}
	if at := seeAlso.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	if text != "" && !strings.Contains(text, "GATEWAY ") && !strings.Contains(text, "OPENED") {
		return strings.ReplaceAll(text, "ADDRESS", addressOf(e))
	}
	return elsewhere
}

// Asked returns a sentence about approvals for a denial of a box that may ask. id is the box's open request for the destination; "":
// there is none.
func Asked(e audit.Event, id string) string {
	if id != "" {
		return "the box has asked for it: " + program() + " approvals show " + id
	}
	return "the box may ask for it: " + program() + " approvals list --box " + boxOf(e)
}

// program returns how the user calls this program: with sudo if it was called with it.
func program() string {
	if os.Geteuid() == 0 && os.Getenv("SUDO_UID") != "" {
		return "sudo gateway"
	}
	return "gateway"
}

// portOf returns the port of a denial for a command line.
func portOf(e audit.Event) string {
	if strings.HasPrefix(string(e.Reason), "url_") {
		return "PORT"
	}
	if e.Port == 0 || e.Stage == policy.StageDNS {
		return strconv.Itoa(HTTPSPort)
	}
	return strconv.Itoa(int(e.Port))
}

// addressOf returns the address of a denial as an entry of network.protected_exempt.
func addressOf(e audit.Event) string {
	if !e.Addr.IsValid() {
		return "this address alone"
	}
	a := e.Addr.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen()).String()
}

// nameOf returns the name of a denial for a command line.
func nameOf(e audit.Event) string {
	if host, err := name.Parse(e.Name); err == nil {
		return host.String()
	}
	return "NAME"
}

// openingAdvice returns how to allow exactly the denied destination. If no policy entry is that narrow, the sentence includes
// what else would be allowed.
func openingAdvice(e audit.Event) string {
	o, ok := OpeningOf(e)
	switch {
	case policy.IsOfCeiling(e.Rule):
		return "no policy of a box opens it: policy.ceiling of the configuration is the operator's limit"
	case !ok && isByAddressAlone(e) && e.Name != "":
		return "names do not open " + strings.ToUpper(string(e.Protocol)) + ", which is judged by its address alone, and an address is opened with all of its ports, under any name; " +
			"if that is meant, add it to allowed_cidrs: GATEWAY policy edit BOX"
	case ok && e.Reason == name.ReasonNoName && !o.IsAddress():
		return "if it does not, and is not one for HTTP or TLS, allow the name: GATEWAY policy allow BOX " + o.Entry
	case !ok && e.Reason == name.ReasonNoName:
		return "what is allowed by name cannot be matched otherwise"
	case !ok && e.Reason == name.ReasonDeniedDomain:
		return "denied entries win, and this one is for more than what was refused; to change it: GATEWAY policy edit BOX"
	case !ok:
		return "see what the policy allows: GATEWAY policy get BOX"
	}
	return o.Caveat("to allow it: GATEWAY policy allow BOX " + o.Entry)
}

// Opening is the narrowest policy entry that lifts a denial.
type Opening struct {
	Entry  string // a name with a port, or an address
	Port   uint16 // 0: the entry is an address
	Lookup bool   // only a look-up was denied, so the port is a guess
}

// IsAddress reports whether the entry belongs in allowed_cidrs. It then allows all ports of an address, under any name.
func (o Opening) IsAddress() bool { return o.Port == 0 }

// Caveat extends a sentence if the entry is wider or narrower than the denial.
func (o Opening) Caveat(text string) string {
	switch {
	case o.IsAddress():
		return text + " (no name is known for it, so this opens every port of the address, under any name)"
	case o.Lookup:
		return text + " (port 443 alone: a connection that is refused says which port it needs)"
	}
	return text
}

// HTTPSPort is the port suggested for a name that was only looked up.
const HTTPSPort = 443

// OpeningOf returns the narrowest entry that lifts a denial. It returns false if no entry would, if the destination is
// unknown, or if the destination has a name from DNS but only its address, with all ports, could be allowed. A connection
// with neither an address nor its own name went to the sink; its name is the one resolved to the sink for this
// box.
func OpeningOf(e audit.Event) (Opening, bool) {
	host, port := e.Name, e.Port
	if e.Stage == policy.StageDNS {
		port = HTTPSPort
	}
	switch e.Reason {
	case name.ReasonNotAllowed, name.ReasonDenyAll, name.ReasonDeniedDomain, name.ReasonNoName:
	default:
		return Opening{}, false
	}
	if policy.IsOfCeiling(e.Rule) {
		return Opening{}, false
	}
	if host == "" {
		if !e.Addr.IsValid() || e.Reason == name.ReasonDeniedDomain {
			return Opening{}, false
		}
		return Opening{Entry: e.Addr.Unmap().WithZone("").String()}, true
	}
	canonical, err := name.Parse(host)
	if err != nil || port == 0 || isByAddressAlone(e) || e.Reason == name.ReasonNoName && (e.Addr.IsValid() || e.Stage != policy.StageConn) {
		return Opening{}, false
	}
	entry := net.JoinHostPort(canonical.String(), strconv.Itoa(int(port)))
	if e.Reason == name.ReasonDeniedDomain && e.Rule != entry { // lifting it would allow more
		return Opening{}, false
	}
	return Opening{Entry: entry, Port: port, Lookup: e.Stage == policy.StageDNS}, true
}

// isByAddressAlone reports whether policies match such traffic by address only, whatever the name.
func isByAddressAlone(e audit.Event) bool {
	return e.Stage != policy.StageDNS && e.Protocol != "" && e.Protocol != policy.TCP
}

// remedies maps reasons to sentences. OPENED is replaced by how to allow the destination, and then GATEWAY, BOX, RULE, PORT,
// ADDRESS and NAME by this program, the box, the rule and the parts of the destination.
var remedies = map[name.Reason]string{
	name.ReasonUnknownBox:        "right after a box was deleted this is a late packet; otherwise find out what sends from that address",
	name.ReasonNoPolicy:          "set the policy again: GATEWAY policy set BOX POLICY",
	name.ReasonProtectedRange:    "no policy opens this range; if boxes must reach it, add ADDRESS to network.protected_exempt of the configuration, and then: GATEWAY reload",
	name.ReasonDeniedDomain:      "the policy denies it by RULE; OPENED",
	name.ReasonDeniedCIDR:        "the policy denies that address by RULE; to change denied_cidrs: GATEWAY policy edit BOX",
	name.ReasonDenyAll:           "the policy denies everything; OPENED",
	name.ReasonNotAllowed:        "OPENED",
	name.ReasonHeaderRule:        "a header rule refuses such requests; see the rules: GATEWAY headers list --box BOX",
	name.ReasonRequestRule:       "a request rule refuses it; see the rules: GATEWAY policy get BOX",
	name.ReasonSpoofed:           "something in the box forges addresses, or a network inside the box is not translated to the box's address",
	name.ReasonHostPort:          "no policy opens it: boxes reach nothing on the host; run the service elsewhere",
	name.ReasonProtocol:          "QUIC clients fall back to TCP; DNS over TLS needs the resolver's address in allowed_cidrs",
	name.ReasonNoName:            "use a client that sends the name of the host (SNI, or a Host header); OPENED",
	name.ReasonAuthorityMismatch: "the client must open a connection for each host",
	name.ReasonBadRequest:        "the request is malformed or ambiguous, and is never repaired: mend the client",
	name.ReasonAmbiguousPath:     "send the path without dot segments, repeated slashes and the like",
	name.ReasonAmbiguousRequest:  "send each parameter and header once, spelled as in the rule",
	name.ReasonUnreadableContent: "a rule for the host depends on the body (MCP, GraphQL or a metered model), and it cannot be read: look at the error of the event",
	name.ReasonPlaceholderLeak:   "a placeholder went where its value does not belong; if that host should get the value, add it to its rule; see the rules: GATEWAY headers list --box BOX",
	name.ReasonModelBudget:       "wait until the period of the budget is over, or raise it",
	name.ReasonModelDenied:       "if the box should get it, change models in the rule of the host, or list an earlier rule without meter for the path; see the rules: GATEWAY headers list --box BOX",
	name.ReasonSecretUnavailable: "the source of the secret fails; see: GATEWAY secret list",
	name.ReasonFleetFenced:       "this host is cut off from its fleet, whose header rule the request needs; see: GATEWAY fleet status",
	name.ReasonUnsignable:        "the request cannot be signed as the rule of its host asks; mostly, send X-Amz-Content-Sha256: UNSIGNED-PAYLOAD or the hash of the body",
	name.ReasonUnscrubbable:      "the response cannot be searched for secrets; turn that coding off, or remove scrub from the rule",
	name.ReasonMethod:            "no policy opens it: TRACE, TRACK and CONNECT are always refused where requests are judged; use another method",
	name.ReasonPeekTimeout:       "the client sent no complete first message; where the server speaks first, resolve its name by DNS before connecting",
	name.ReasonPeekSize:          "no ordinary client begins with so large a message: look at what runs there",
	name.ReasonLimit:             "find out what opens so many; the limits are under limits in the configuration",
	name.ReasonSourceAddress:     "the box has no address to leave from: look at its source addresses (GATEWAY box get BOX), network.sources, and ip addr",
	name.ReasonQuota:             "the box has used up limits.quota of the configuration; it may go on when the period is over",
	name.ReasonUnresolved:        "the name does not exist, or has no address that may be dialled; see: GATEWAY policy explain BOX NAME --port PORT",
	name.ReasonUnreachable:       "the policy allows it, but the server does not answer: check it, and the host's own connectivity",
	name.ReasonUpstreamTLS:       "the server's certificate could not be verified; add a private CA to proxy.upstream_ca_files",
	name.ReasonUpstreamProxy:     "the upstream proxy could not be used: look at the error of the event, and try the proxy from the host",
	name.ReasonUpstreamLogin:     "the server took no login with these credentials: look at the error of the event",
	name.ReasonUpstreamHTTP:      "the server broke the protocol: look at the error of the event",
	name.ReasonClientTLS:         "the client does not trust the box's CA; see: GATEWAY ca --box BOX",
	name.ReasonPolicyChanged:     "intended: the policy has changed and denies it now; see: GATEWAY policy get BOX",
	name.ReasonInternal:          "a bug of the gateway: report it with this line",
	name.ReasonURLUnknown:        "there is no such public URL; see: GATEWAY url list BOX",
	name.ReasonURLAuth:           "send the credential that was shown when the URL was made, or make it anew: GATEWAY url create BOX PORT",
	name.ReasonURLOrigin:         "if the other site is yours, list it with --origin when the URL is made",
	name.ReasonURLUnavailable:    "start the server in the box, listening on all of its addresses",
}

func boxOf(e audit.Event) string {
	switch {
	case e.Box == "":
		return "BOX"
	case e.BoxName != "" && !strings.ContainsFunc(e.BoxName, func(r rune) bool { return !strings.ContainsRune(shellSafe, r) }):
		return e.BoxName
	}
	return string(e.Box)
}

// shellSafe lists the characters of box names. A shell treats all of them literally.
const shellSafe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// quoted quotes a rule for a sentence.
func quoted(rule string) string {
	if rule == "" {
		return "one of its entries"
	}
	return strconv.QuoteToASCII(rule)
}

// Destination returns the argument of `gateway policy deny` for the event: the name with its port, or the address. It
// returns "" for anything else, because a shell could interpret it.
func Destination(e audit.Event) string {
	if e.Name == "" {
		if !e.Addr.IsValid() {
			return ""
		}
		return e.Addr.String()
	}
	host, err := name.Parse(e.Name)
	switch {
	case err != nil:
		return ""
	case e.Port == 0:
		return host.String()
	}
	return net.JoinHostPort(host.String(), strconv.Itoa(int(e.Port)))
}
