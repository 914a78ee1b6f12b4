package policy

import (
	"fmt"
	"net/netip"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// BoxID identifies one sandbox. It is made by the gateway and safe in file names, interface names and URLs
// (lower-case letters and digits, at most 32 bytes).
type BoxID string

// Stage says which part of the gateway asks for a decision.
type Stage string

// The stages, in the order a connection meets them.
const (
	StageDNS    Stage = "dns"    // a query for a name
	StageKernel Stage = "kernel" // a packet judged by nftables
	StageConn   Stage = "conn"   // a connection at the proxy, once its name is known or known to be absent
	StageHTTP   Stage = "http"   // one request inside a connection
	StageDial   Stage = "dial"   // the address about to be dialled
	StageURL    Stage = "url"    // a request to a public URL
)

// Protocol is the transport protocol of a destination.
type Protocol string

// The transport protocols a policy can tell apart.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
)

// Request is all that is known about a destination when a stage asks for a decision. Fields not known yet are zero.
type Request struct {
	Stage    Stage
	Box      BoxID
	Name     name.Name  // SNI, Host or query name; zero if none is known
	Addr     netip.Addr // the destination address; invalid if not known yet (DNS before resolution, the sink)
	Port     uint16     // destination port; 0 if not known (DNS, ICMP)
	Protocol Protocol
	Method   string        // HTTP method, only at StageHTTP
	Path     string        // HTTP path without the query, only at StageHTTP
	Query    string        // HTTP query as sent, without "?", only at StageHTTP
	Fields   *match.Fields // header fields that the policy looks at, see [Compiled.Needs], only at StageHTTP
}

// Verdict is the outcome of a decision. The zero value is Deny.
type Verdict uint8

// The two verdicts.
const (
	Deny Verdict = iota
	Allow
)

// String returns "allow" or "deny"; any value but Allow is "deny".
func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// MarshalText returns [Verdict.String] for JSON and logs.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText wrote. Anything but "allow" is Deny.
func (v *Verdict) UnmarshalText(b []byte) error {
	*v = Deny
	if string(b) == "allow" {
		*v = Allow
	}
	return nil
}

// Decision is the answer to a [Request]. The zero value denies.
type Decision struct {
	Verdict Verdict
	Reason  name.Reason
	Rule    string // the rule as written that decided, such as "*.github.com"; empty where no single rule did
	Version uint64 // version of the policy that decided
	// DialName says that the verdict holds for the name, not for the address the box asked for: the proxy must dial an
	// address that the name resolves to, and ask again at StageDial. Where it is false the address itself was allowed.
	DialName bool
}

// Allowed reports whether the verdict is Allow.
func (d Decision) Allowed() bool { return d.Verdict == Allow }

// Err returns nil if the decision allows, else a *[DeniedError] holding it and the request.
func (d Decision) Err(r Request) error {
	if d.Allowed() {
		return nil
	}
	return &DeniedError{Request: r, Decision: d}
}

// ShownRule returns the rule as it may be shown to the box: the entry of its own policy, but never a protected range.
// Which range matched would reveal which addresses are the host's own, and what a name resolves to inside the host's
// network.
func (d Decision) ShownRule() string {
	if d.Reason == name.ReasonProtectedRange {
		return ""
	}
	return d.Rule
}

// DeniedError is the one typed denial. Each protocol maps it to its own words with errors.As.
type DeniedError struct {
	Request  Request
	Decision Decision
}

// Error says what was denied, why, and by which rule.
func (e *DeniedError) Error() string { return e.text(e.Decision.Rule) }

// Shown is Error as the box may see it: see [Decision.ShownRule].
func (e *DeniedError) Shown() string { return e.text(e.Decision.ShownRule()) }

func (e *DeniedError) text(rule string) string {
	what := e.Request.Name.String()
	if what == "" && e.Request.Addr.IsValid() {
		what = e.Request.Addr.String()
	}
	if what == "" {
		what = "destination"
	}
	if e.Request.Port != 0 {
		what = fmt.Sprintf("%s port %d", what, e.Request.Port)
	}
	if rule != "" {
		return fmt.Sprintf("%s denied: %s (rule %q)", what, e.Decision.Reason, rule)
	}
	return fmt.Sprintf("%s denied: %s", what, e.Decision.Reason)
}
