package match

import (
	"slices"
	"strings"
	"unicode/utf8"

	"boxgate/policy/name"
)

// Fields are the forwarded header fields of a request with the names in Needs, from [policy.Compiled.Needs]. With a nil *Fields
// no field is known.
type Fields struct {
	Needs *Needs
	List  []Field
}

// Field is one header field, as forwarded.
type Field struct{ Name, Value string }

// Needs is the set of header fields that rules look at.
type Needs struct {
	all   bool     // some rule has a prefix or a regular expression for names
	names []string // folded, see foldHeader
}

// NeedsOf returns the set of fields with any variant of the names.
func NeedsOf(names ...string) (n Needs) {
	for _, name := range names {
		n.Add(Needs{names: []string{FoldHeader(name)}})
	}
	return n
}

// Wants reports whether rules look at fields with any variant of a name.
func (n *Needs) Wants(name string) bool {
	return n != nil && (n.all || slices.Contains(n.names, FoldHeader(name)))
}

// Add adds the fields of other.
func (n *Needs) Add(other Needs) {
	n.all = n.all || other.all
	for _, name := range other.names {
		if !slices.Contains(n.names, name) {
			n.names = append(n.names, name)
		}
	}
}

func (n *Needs) IsZero() bool { return !n.all && len(n.names) == 0 }

// knows reports whether the fields of a matcher are known.
func (f *Fields) knows(m *pairMatcher) bool {
	if f == nil || f.Needs == nil {
		return false
	}
	return f.Needs.all || m.key.exact && slices.Contains(f.Needs.names, m.folded)
}

// Covers reports whether n contains all fields of other.
func (n *Needs) Covers(other Needs) bool {
	if n == nil {
		return false
	}
	return n.all || !other.all && !slices.ContainsFunc(other.names, func(s string) bool { return !slices.Contains(n.names, s) })
}

// AllFields returns Fields with a complete list.
func AllFields(list []Field) *Fields { return &Fields{Needs: &Needs{all: true}, List: list} }

// FoldHeader returns a name in lower case with "-" for "_", which are equal for servers that turn headers into variables (CGI).
func FoldHeader(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// refusedHeaders belong to the connection or to the framing of the message (RFC 9110 7.6.1 and 7.2, RFC 9112 6), and are set
// by the gateway.
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

// HeaderFlaw returns a sentence whose subject is the name, or "" if the header may be set.
func HeaderFlaw(n string) string {
	switch {
	case n == "":
		return "is an empty header name"
	case len(n) > 256:
		return "is longer than 256 bytes"
	case n[0] == ':':
		return "is a pseudo-header; the gateway keeps those of the request"
	}
	for _, r := range n {
		if r >= utf8.RuneSelf || !name.IsToken(byte(r)) {
			return "is not a header name: " + name.Quote(string(r)) + " is not allowed in one"
		}
	}
	if flaw, refused := refusedHeaders[FoldHeader(n)]; refused {
		return flaw + ", and cannot be set"
	}
	return ""
}
