package audit

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"boxgate/policy"
)

// Line formats an event as one human-readable line: time, verdict, box by name or else ID, stage, destination, reason,
// and the other fields that are set. The verdict column has "end" for the end of allowed traffic, "none" for an allowed
// name that does not exist, and "FAIL" if not a policy but a server is the reason. The line contains no control bytes, whatever the event contains.
func Line(e Event) string {
	e.escapeTexts()
	verdict := "DENY"
	switch {
	case e.Verdict == policy.Deny && e.Reason.IsFailure():
		verdict = "FAIL"
	case e.Verdict == policy.Allow && e.Phase == PhaseEnd:
		verdict = "end"
	case e.Verdict == policy.Allow && e.RCode == NXDomain:
		verdict = "none"
	case e.Verdict == policy.Allow:
		verdict = "allow"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-5s  %-12s  %-6s  %-9s  %-36s  %-18s", e.Time.Local().Format("15:04:05.000"), verdict,
		orDash(cmp.Or(e.BoxName, string(e.Box))), e.Stage, orDash(string(e.Action)), destination(e), e.Reason)
	for _, extra := range extras(e) {
		b.WriteString("  ")
		b.WriteString(extra)
	}
	return strings.TrimRight(b.String(), " ")
}

// Summary describes the decision in a few words: verdict ("fail" if a server is the reason), stage, destination and reason, or
// that an allowed name does not exist. It contains no control bytes, whatever the event contains.
func Summary(e Event) string {
	e.escapeTexts()
	if e.RCode == NXDomain && e.Verdict == policy.Allow {
		return e.RCode + " " + destination(e) + ": the name does not exist"
	}
	verdict := e.Verdict.String()
	if e.Verdict == policy.Deny && e.Reason.IsFailure() {
		verdict = "fail"
	}
	return verdict + " " + string(e.Stage) + " " + destination(e) + ": " + string(e.Reason)
}

// destination formats the destination: name or address, port, and the request if there is one.
func destination(e Event) string {
	host := e.Name
	if host == "" && e.Addr.IsValid() {
		host = e.Addr.String()
	}
	if e.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
	}
	if e.Protocol != "" && e.Protocol != policy.TCP {
		host = string(e.Protocol) + "/" + host
	}
	if e.Method != "" || e.Path != "" {
		return strings.TrimSpace(e.Method + " " + host + e.Path)
	}
	return orDash(host)
}

// extras returns the optional fields of an event, each as name=value.
func extras(e Event) []string {
	var out []string
	add := func(name, value string) { out = append(out, name+"="+value) }
	if e.Messages != "" {
		add("messages", quote(e.Messages))
	}
	if e.Rule != "" {
		add("rule", quote(e.Rule))
	}
	if e.Name != "" && e.Addr.IsValid() {
		add("addr", e.Addr.String())
	}
	if e.Claimed.IsValid() {
		add("claimed", e.Claimed.String())
	}
	if e.RCode != "" {
		add("rcode", e.RCode)
	}
	if e.Peer.IsValid() {
		add("peer", e.Peer.String())
	}
	if e.Credential != "" {
		add("by", string(e.Credential))
	}
	if e.Status != 0 {
		add("status", strconv.Itoa(e.Status))
	}
	if len(e.Headers) > 0 {
		add("set", strings.Join(e.Headers, ","))
	}
	if e.Login != "" {
		add("login", quote(e.Login))
	}
	if e.Via != "" {
		add("via", quote(e.Via))
	}
	switch {
	case len(e.Secrets) > 0:
		add("secret", strings.Join(e.Secrets, ","))
	case e.Secret != "":
		add("secret", e.Secret)
	}
	return append(out, measures(e)...)
}

// measures returns the extras about amounts, duration and outcome.
func measures(e Event) []string {
	var out []string
	add := func(name, value string) { out = append(out, name+"="+value) }
	if e.BytesIn != 0 || e.BytesOut != 0 {
		add("in", strconv.FormatInt(e.BytesIn, 10))
		add("out", strconv.FormatInt(e.BytesOut, 10))
	}
	if e.Duration != 0 {
		add("took", e.Duration.Round(10*time.Microsecond).String())
	}
	if e.Count > 1 {
		add("count", strconv.FormatUint(e.Count, 10))
	}
	if e.Destinations > 0 {
		add("destinations", strconv.FormatUint(e.Destinations, 10))
	}
	if e.Phase != "" {
		add("phase", string(e.Phase))
	}
	if e.Conn != "" {
		add("conn", e.Conn)
	}
	if e.SelfTest {
		add("selftest", "true")
	}
	if e.Error != "" {
		add("error", quote(e.Error))
	}
	return out
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// quote quotes a text that may have spaces. It keeps backslashes: the text is already escaped.
func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }
