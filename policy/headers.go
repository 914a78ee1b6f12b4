package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"
)

// Header is one header that the gateway sets on a matching request.
type Header struct {
	Name  string // canonical form (textproto.CanonicalMIMEHeaderKey); HTTP/2 sends it in lower case
	Value Secret
}

// HeaderRule sets headers on the HTTPS requests of the hosts its pattern covers (port 443 if the pattern gives none).
// The most specific pattern that covers a host applies alone, so a rule without headers takes its hosts out of wider
// rules.
type HeaderRule struct {
	Pattern Pattern
	Headers []Header // sorted by name
}

// Limits of header rules.
const (
	maxHeaderHosts  = 256
	maxHostHeaders  = 64
	maxHeaderValue  = 8 << 10
	defaultTLSPort  = 443
	defaultHTTPPort = 80
)

// ParseHeaders reads header rules: host pattern → header name → value, such as
// {"api.example.com": {"Authorization": "Bearer …"}}. The rules come back sorted by pattern. The error is an
// *[InvalidError] with every problem at once; its pointers are relative to m, and it never holds a value.
func ParseHeaders(m map[string]map[string]string) ([]HeaderRule, error) {
	var ps problems
	if len(m) > maxHeaderHosts {
		ps.add("", "there are %d hosts; the most is %d", len(m), maxHeaderHosts)
		return nil, ps.err()
	}
	rules := make([]HeaderRule, 0, len(m))
	seen := map[Pattern]string{}
	for _, host := range slices.Sorted(maps.Keys(m)) {
		at := pointer("", host)
		rule, ok := parseHeaderRule(at, host, m[host], &ps)
		if !ok {
			continue
		}
		key := rule.key()
		if other, twice := seen[key]; twice {
			ps.add(at, "%s and %s are the same hosts; keep one of them", quoted(other), quoted(host))
			continue
		}
		seen[key] = host
		rules = append(rules, rule)
	}
	if err := ps.err(); err != nil {
		return nil, err
	}
	sortRules(rules)
	return rules, nil
}

func parseHeaderRule(at, host string, headers map[string]string, ps *problems) (HeaderRule, bool) {
	p, err := ParsePattern(host)
	if err == nil && p.wild && p.name.IsZero() {
		err = fmt.Errorf(`%s would send the headers to every host; use a name, or "*.name"`, quoted(host))
	}
	if err != nil {
		ps.add(at, "%s", err)
	}
	if len(headers) > maxHostHeaders {
		ps.add(at, "there are %d headers; the most for one host is %d", len(headers), maxHostHeaders)
		return HeaderRule{}, false
	}
	rule := HeaderRule{Pattern: p}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		at := pointer(at, name)
		if flaw := headerNameFlaw(name); flaw != "" {
			ps.add(at, "%s %s", quoted(name), flaw)
		} else if other, twice := seen[foldHeader(name)]; twice {
			ps.add(at, "%s and %s are the same header to a server; keep one of them", quoted(other), quoted(name))
		}
		if flaw := headerValueFlaw(headers[name]); flaw != "" {
			ps.add(at, "the value of %s %s", quoted(name), flaw)
		}
		seen[foldHeader(name)] = name
		rule.Headers = append(rule.Headers, Header{textproto.CanonicalMIMEHeaderKey(name), NewSecret(headers[name])})
	}
	slices.SortFunc(rule.Headers, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
	return rule, err == nil
}

// MergeHeaders returns the rules of a box over the global ones: a box's rule replaces the global rule of the same
// pattern (and port), the other global rules stay. The result is sorted by pattern; it shares the header lists with
// what was given, and nobody may change those.
func MergeHeaders(global, box []HeaderRule) []HeaderRule {
	merged := map[Pattern]HeaderRule{}
	for _, r := range global {
		merged[r.key()] = r
	}
	for _, r := range box {
		merged[r.key()] = r
	}
	out := slices.Collect(maps.Values(merged))
	sortRules(out)
	return out
}

// key is the pattern with its port filled in: two rules with the same key are for the same hosts.
func (r HeaderRule) key() Pattern { return r.Pattern.withPort(defaultTLSPort) }

func sortRules(rules []HeaderRule) {
	slices.SortFunc(rules, func(a, b HeaderRule) int { return cmp.Compare(a.key().String(), b.key().String()) })
}

// foldHeader returns the form in which servers that turn headers into variables see a name: no case, "_" as "-".
func foldHeader(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// refusedHeaders belong to the connection or to the framing of the message (RFC 9110 7.6.1 and 7.2, RFC 9112 6): the
// gateway itself decides about them.
var refusedHeaders = map[string]string{
	"connection":          "is hop-by-hop",
	"keep-alive":          "is hop-by-hop",
	"proxy-connection":    "is hop-by-hop",
	"proxy-authenticate":  "is hop-by-hop",
	"proxy-authorization": "is hop-by-hop",
	"te":                  "is hop-by-hop",
	"trailer":             "is hop-by-hop",
	"transfer-encoding":   "is hop-by-hop",
	"upgrade":             "is hop-by-hop",
	"http2-settings":      "is hop-by-hop",
	"host":                "names the destination that the policy judges",
	"content-length":      "belongs to the framing of the message",
	"expect":              "belongs to the framing of the message",
}

// headerNameFlaw completes the sentence that begins with the name; empty if there is none.
func headerNameFlaw(name string) string {
	switch {
	case name == "":
		return "is an empty header name"
	case len(name) > 256:
		return "is longer than 256 bytes"
	case name[0] == ':':
		return "is a pseudo-header; the gateway keeps those of the request"
	}
	for _, r := range name {
		if r >= utf8.RuneSelf || !isToken(byte(r)) {
			return "is not a header name: " + quoted(string(r)) + " may not stand in one"
		}
	}
	if flaw, refused := refusedHeaders[foldHeader(name)]; refused {
		return flaw + ", and cannot be set"
	}
	return ""
}

// isToken reports whether c is a tchar of RFC 9110 5.6.2.
func isToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// headerValueFlaw completes the sentence "the value of …" without showing any of it; empty if there is none.
func headerValueFlaw(v string) string {
	if len(v) > maxHeaderValue {
		return fmt.Sprintf("is %d bytes; the most is %d", len(v), maxHeaderValue)
	}
	if strings.HasSuffix(v, "\n") && headerValueFlaw(strings.TrimRight(v, "\r\n")) == "" {
		return "ends in a line break; remove it"
	}
	for i := range len(v) {
		if c := v[i]; c != '\t' && (c < ' ' || c > '~') {
			return fmt.Sprintf("has a byte that is not visible ASCII, space or tab (at offset %d)", i)
		}
	}
	if strings.Trim(v, " \t") != v {
		return "begins or ends with a space or tab, which HTTP takes off; remove it"
	}
	return ""
}
