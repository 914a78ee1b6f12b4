package match

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"boxgate/policy/name"
)

// Fit is how certainly a request meets a condition. The zero value is unfit. An unsure request meets the condition for some servers
// and not for others: rules that deny apply to it, rules that allow or send secrets do not.
type Fit uint8

// The fits, from the worst to the best.
const (
	Unfit Fit = iota
	Unsure
	Fits
)

// maxMatchedText is the length of the longest text that is compared with regular expressions, which bounds their time. The fit of
// longer texts is unsure.
const maxMatchedText = 4096

// effort is the remaining budget for comparing one request with all matchers of its host. A step is about the time of a regular
// expression for a byte and an instruction. Without the budget, a large request and many rules would take seconds of CPU time.
type effort struct{ left int }

// fullEffort is about 20 ms, and a hundred times the effort of ordinary requests.
const fullEffort = 8 << 20

// Steps of an operation for each byte.
const (
	compareSteps = 1 // comparing texts ignoring case
	splitSteps   = 8 // taking a query or head apart, and decoding
)

// nameSteps is the effort of remembering a name, in addition to its bytes.
const nameSteps = 64

// spend takes steps from the budget. If it reports false, the budget is exceeded and the fit is unsure.
func (e *effort) spend(steps int) bool {
	if e.left < steps {
		e.left = 0 // later comparisons fail as well, however small
		return false
	}
	e.left -= steps
	return true
}

// textMatcher is a compiled [Matcher].
type textMatcher struct {
	exact, any   bool // any: the empty prefix
	text, folded string
	re, foldedRE *regexp.Regexp // of a regex, as written and ignoring case
	size         int            // instructions of foldedRE
}

// one compares one reading of a text. A difference in case only is unsure: some servers ignore case.
func (m *textMatcher) one(s string, e *effort) Fit {
	switch {
	case m.any:
		return Fits
	case m.re != nil:
		return m.regex(s, e)
	case !e.spend(compareSteps * len(s)):
		return Unsure
	case m.exact:
		switch {
		case s == m.text:
			return Fits
		case strings.EqualFold(s, m.text) || strings.ToLower(s) == m.folded:
			return Unsure
		}
	case strings.HasPrefix(s, m.text):
		return Fits
	case strings.HasPrefix(strings.ToLower(s), m.folded):
		return Unsure
	}
	return Unfit
}

func (m *textMatcher) regex(s string, e *effort) Fit {
	switch {
	case len(s) > maxMatchedText, !e.spend(2 * m.size * (len(s) + 1)):
		return Unsure
	case m.re.MatchString(s):
		if !utf8.ValidString(s) {
			return Unsure
		}
		return Fits
	case m.foldedRE.MatchString(s):
		return Unsure
	}
	return Unfit
}

// all compares every reading of a text.
func (m *textMatcher) all(readings []string, e *effort) Fit {
	least, most := Fits, Unfit
	for _, s := range readings {
		f := m.one(s, e)
		least, most = min(least, f), max(most, f)
	}
	return agreed(least, most)
}

// agreed returns the fit of a text, given the worst and the best fit of its readings.
func agreed(least, most Fit) Fit {
	if least == most {
		return least
	}
	return Unsure
}

// readingsOf returns the possible interpretations of a part of a query by servers: percent-encoding decoded, with "+" unchanged and as
// a space, decoded twice, with escapes such as %u0061 decoded, and cut at a NUL byte. Equal ones are returned
// once.
func readingsOf(raw string) []string {
	out := []string{decodePercent(raw)}
	if old := decodeOld(raw); old != raw {
		out = append(out, decodePercent(old))
	}
	if strings.Contains(raw, "+") {
		out = append(out, decodePercent(strings.ReplaceAll(raw, "+", " ")))
	}
	for _, s := range out {
		if twice := decodePercent(decodeOld(s)); twice != s {
			out = append(out, twice)
		}
		if i := strings.IndexByte(s, 0); i >= 0 {
			out = append(out, s[:i])
		}
	}
	return out
}

// OldEscape returns the position of the first escape such as %uFF41 of a character outside ASCII in a part of a query, or -1. Servers
// that decode those (IIS) replace the character by a similar one of their own character set, such as a full-width "a" by "a". The
// result is unpredictable here.
func OldEscape(s string) int {
	for at := 0; ; at++ {
		i := strings.IndexByte(s[at:], '%')
		if i < 0 {
			return -1
		}
		if at += i; len(s)-at >= 6 && s[at+1]|0x20 == 'u' {
			if c, err := strconv.ParseUint(s[at+2:at+6], 16, 16); err == nil && c >= utf8.RuneSelf {
				return at
			}
		}
	}
}

// hasOldEscape reports whether there is an [OldEscape], as sent or after decoding.
func hasOldEscape(raw string) bool {
	return strings.Contains(raw, "%") && (OldEscape(raw) >= 0 || OldEscape(decodePercent(raw)) >= 0)
}

// decodeOld decodes escapes such as %u0061, as IIS and others do, of ASCII characters except the percent sign, which would begin
// another escape.
func decodeOld(s string) string {
	if !strings.Contains(s, "%u00") && !strings.Contains(s, "%U00") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if rest := s[i:]; len(rest) >= 6 && rest[0] == '%' && rest[1]|0x20 == 'u' {
			if c, err := strconv.ParseUint(rest[2:6], 16, 16); err == nil && c < utf8.RuneSelf && c != '%' {
				b.WriteByte(byte(c))
				i += 5
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// CheckHeaderName returns nil if a header with this name may be set: it is a token, and belongs neither to the connection nor to the
// framing of the message.
func CheckHeaderName(n string) error {
	if flaw := HeaderFlaw(n); flaw != "" {
		return errors.New(name.Quote(name.Shown(n, name.IsToken)) + " " + flaw)
	}
	return nil
}

// CheckHeaderValue returns nil if v is valid as the value of a header: visible ASCII with spaces and tabs inside, up to 8 KiB.
// The error does not quote the value.
func CheckHeaderValue(v string) error {
	if flaw := HeaderValueFlaw(v); flaw != "" {
		return errors.New("the value " + flaw)
	}
	return nil
}

// MaxHeaderValue is the length of the longest value of a header, in bytes.
const MaxHeaderValue = 8 << 10

// HeaderValueFlaw completes the sentence "the value of …" without quoting the value; "" if it is valid.
func HeaderValueFlaw(v string) string {
	if len(v) > MaxHeaderValue {
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), MaxHeaderValue)
	}
	if strings.HasSuffix(v, "\n") && HeaderValueFlaw(strings.TrimRight(v, "\r\n")) == "" {
		return "ends in a line break; remove it"
	}
	if flaw := HeaderBytesFlaw(v); flaw != "" {
		return flaw
	}
	if strings.Trim(v, " \t") != v {
		return "begins or ends with a space or tab, which HTTP strips; remove it"
	}
	return ""
}

// HeaderBytesFlaw completes a sentence about a text with bytes that are invalid in header values; "" if it has none.
func HeaderBytesFlaw(v string) string {
	for i := range len(v) {
		if c := v[i]; c != '\t' && (c < ' ' || c > '~') {
			return fmt.Sprintf("has a byte that is not visible ASCII, space or tab (at offset %d)", i)
		}
	}
	return ""
}

// AffixFlaw completes a sentence about an invalid prefix or suffix of a secret. Unlike a value, it may have a space next to the
// secret.
func AffixFlaw(v string, suffix bool) string {
	outer := strings.TrimLeft(v, " \t")
	if suffix {
		outer = strings.TrimRight(v, " \t")
	}
	switch {
	case len(v) > MaxHeaderValue/2:
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), MaxHeaderValue/2)
	case HeaderBytesFlaw(v) != "":
		return HeaderBytesFlaw(v)
	case outer != v && suffix:
		return "ends with a space or tab, which HTTP strips; remove it"
	case outer != v:
		return "begins with a space or tab, which HTTP strips; remove it"
	}
	return ""
}

// ShownHeader reports whether a request header is unsuitable for a key, since many servers show its value: in a response header,
// such as the origin of a cross-origin request, the ID of a request or the subprotocol of a WebSocket; on an error
// page, such as the unsupported media type; or to all readers of a stored object, such as its metadata.
func ShownHeader(name string) bool {
	name = FoldHeader(name)
	has := func(test func(string, string) bool) func(string) bool {
		return func(part string) bool { return test(name, part) }
	}
	return shownHeaders[name] ||
		slices.ContainsFunc(shownParts, has(strings.Contains)) ||
		slices.ContainsFunc(shownPrefixes, has(strings.HasPrefix)) ||
		slices.ContainsFunc(shownSuffixes, has(strings.HasSuffix)) ||
		slices.ContainsFunc(storePrefixes, has(strings.HasPrefix)) && !slices.ContainsFunc(keyWords, has(strings.Contains))
}

// shownParts: x-amz-meta-*, x-goog-meta-*, x-ms-meta-*, x-object-meta-*, x-container-meta-*, x-oss-meta-* and the like.
var shownParts = []string{"-meta-"}

var shownPrefixes = []string{
	"accept-", "access-control-", "content-", "grpc-", "if-", "sec-ch-", "sec-fetch-", "x-forwarded-", "x-original-",
	"upload-", "x-upload-", "x-archive-meta", "x-stainless-", "x-goog-custom-audit-",
	"x-emc-meta", "x-emc-listable-meta", "helicone-property-", "helicone-session-", "helicone-user-",
	"x-b3-", "x-envoy-", "x-datadog-", "x-newrelic-", "uberctx-", "ot-tracer-", "ot-baggage-",
}

var shownSuffixes = []string{
	"-request-id", "-correlation-id", "-trace-id", "-idempotency-key", "-api-client", "-version", "-beta", "-key-id", "-key-name", "-key-enabled", "-key-md5", "-key-sha256",
}

// storePrefixes are prefixes of the headers of object stores and their clouds. Stores print, return or keep nearly all of
// them: tags, redirects, copy sources, content types. Headers for keys have one of keyWords in their name.
var (
	storePrefixes = []string{"x-amz-", "x-goog-", "x-ms-", "x-oss-", "x-cos-", "x-obs-", "x-tos-", "x-bce-", "x-bz-"}
	keyWords      = []string{"key", "token", "auth", "secret", "credential", "mfa"}
)

var shownHeaders = map[string]bool{
	"accept": true, "origin": true, "referer": true, "user-agent": true, "from": true, "via": true, "forwarded": true, "date": true,
	"range": true, "cache-control": true, "pragma": true, "prefer": true, "priority": true, "max-forwards": true,
	"upgrade-insecure-requests": true, "dnt": true, "link": true, "warning": true, "last-event-id": true, "soapaction": true,
	"destination": true, "depth": true, "overwrite": true, "slug": true, "if": true, "timeout": true, "a-im": true,
	"sec-websocket-key": true, "sec-websocket-version": true, "sec-websocket-extensions": true, "sec-websocket-protocol": true,
	"request-id": true, "correlation-id": true, "trace-id": true, "idempotency-key": true,
	"traceparent": true, "tracestate": true, "baggage": true, "b3": true, "x-cloud-trace-context": true, "uber-trace-id": true,
	"sentry-trace": true, "newrelic": true, "x-ot-span-context": true, "elastic-apm-traceparent": true, "jaeger-debug-id": true, "jaeger-baggage": true,
	"x-http-method-override": true, "x-http-method": true, "x-method-override": true, "x-rewrite-url": true,
	"x-host": true, "x-real-ip": true, "x-client-ip": true, "true-client-ip": true, "x-remote-ip": true, "x-remote-addr": true,
	"x-cluster-client-ip": true, "cf-connecting-ip": true, "fastly-client-ip": true, "cdn-loop": true,
	"x-requested-with": true, "x-object-manifest": true, "x-copy-from": true, "x-delete-at": true,
	"x-symlink-target": true, "x-versions-location": true, "x-history-location": true, "x-container-read": true, "x-container-write": true,
	"openai-organization": true, "openai-project": true, "http-referer": true, "x-title": true, "cf-aig-metadata": true, "x-portkey-metadata": true,
}
