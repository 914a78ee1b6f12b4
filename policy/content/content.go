package content

import (
	"strconv"
	"strings"
)

// Kind is a protocol whose messages rules match.
type Kind uint8

// The kinds.
const (
	MCP Kind = iota + 1
	GraphQL
	kinds = iota + 1
)

// String returns the name of the protocol.
func (k Kind) String() string {
	switch k {
	case MCP:
		return "MCP"
	case GraphQL:
		return "GraphQL"
	}
	return ""
}

// MaxBody is the size of the largest body that is read, decoded and as sent, in bytes.
const MaxBody = 1 << 20

// maxBatch is the maximum number of messages in one request.
const maxBatch = 64

// Head is the part of a request that determines how its body is read. Lists contain the values of all fields of the name.
type Head struct {
	Method, Query string // as forwarded; the query without question mark
	Types         []string
	MCPMethod     []string // Mcp-Method
	MCPName       []string // Mcp-Name
	HasBody       bool
	Upgrades      bool // it opens a WebSocket
}

// Content holds the messages of a request, as far as they were read. It is immutable, and nil if the body is unknown.
type Content struct {
	Messages   []Message   // of MCP
	Operations []Operation // of GraphQL
	read       [kinds]bool
	flaws      [kinds]string
}

// Has reports whether the messages of a kind, or their flaw, are known.
func (c *Content) Has(k Kind) bool { return c != nil && c.read[k] }

// Flaw returns why the messages of a kind cannot be read, or "".
func (c *Content) Flaw(k Kind) string { return c.flaws[k] }

// With returns a copy of c with the messages of a kind, read from the decoded body.
func (c *Content) With(k Kind, h *Head, body []byte) *Content {
	out := c.copy()
	out.read[k] = true
	var flaw error
	switch {
	case h.Upgrades:
		flaw = errUpgrade
	case k == MCP:
		out.Messages, flaw = readMCP(h, body)
	default:
		out.Operations, flaw = readGraphQL(h, body)
	}
	if flaw == nil {
		return out
	}
	if out.flaws[k] = flaw.Error(); k == MCP {
		out.Messages = nil
	} else {
		out.Operations = nil
	}
	return out
}

// Unreadable returns a copy of c with a flaw of the messages of a kind.
func (c *Content) Unreadable(k Kind, flaw string) *Content {
	out := c.copy()
	out.read[k], out.flaws[k] = true, flaw
	return out
}

// Bounds of a summary.
const (
	maxSummary = 400 // bytes
	maxSummed  = 100 // bytes of a name
)

// Summary names what the messages ask for, such as "tools/call search" or "mutation Remove {deleteUser}", each once, for
// decisions. It is printable ASCII without values of parameters; long names and lists are cut. Flawed messages have none.
func (c *Content) Summary() string {
	if c == nil {
		return ""
	}
	var b strings.Builder
	seen, more := map[string]bool{}, 0
	add := func(text string) {
		switch {
		case text == "" || seen[text]:
		case b.Len()+len(text) > maxSummary:
			more++
		default:
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(text)
			seen[text] = true
		}
	}
	for i := range c.Messages {
		add(c.Messages[i].summary())
	}
	for i := range c.Operations {
		add(c.Operations[i].summary())
	}
	if more > 0 {
		b.WriteString(" and " + strconv.Itoa(more) + " more")
	}
	return b.String()
}

// summed returns a name in printable ASCII, quoted if it has other characters or blanks, and cut.
func summed(s string) string {
	cut := len(s) > maxSummed
	if cut {
		s = s[:maxSummed]
	}
	if strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }) {
		if s = strconv.QuoteToASCII(s); len(s) > maxSummed {
			s, cut = s[:maxSummed], true
		}
	}
	if cut {
		s += "..."
	}
	return s
}

func (m *Message) summary() string {
	if m.Tool != "" {
		return summed(m.Method) + " " + summed(m.Tool)
	}
	return summed(m.Method)
}

func (o *Operation) summary() string {
	if o.Persisted != "" {
		return "persisted " + summed(o.Persisted)
	}
	var b strings.Builder
	b.WriteString(o.Type)
	if o.Name != "" {
		b.WriteString(" " + summed(o.Name))
	}
	b.WriteString(" {")
	for i, f := range o.Fields {
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.Len()+len(f) > 2*maxSummed {
			b.WriteString("and " + strconv.Itoa(len(o.Fields)-i) + " more")
			break
		}
		b.WriteString(summed(f))
	}
	b.WriteByte('}')
	return b.String()
}

func (c *Content) copy() *Content {
	if c == nil {
		return &Content{}
	}
	out := *c
	return &out
}

// flaw is an error with a text that may be shown.
type flaw string

func (f flaw) Error() string { return string(f) }

const (
	errUpgrade   = flaw("rules cannot read the messages of a WebSocket")
	errType      = flaw("the body needs a single Content-Type of a supported media type in UTF-8")
	errBodyOfGet = flaw("only POST may have a body")
	errBatch     = flaw("a batch must have between 1 and 64 messages")
)

// mediaType returns the media type of a body in lower case. A charset other than UTF-8, other parameters, and repeated fields are
// flaws: servers use the first or last field, and decode by the charset.
func (h *Head) mediaType() (string, error) {
	if len(h.Types) != 1 {
		return "", errType
	}
	media, parameters, _ := strings.Cut(h.Types[0], ";")
	switch strings.ToLower(strings.ReplaceAll(strings.Trim(parameters, " \t"), `"`, "")) {
	case "", "charset=utf-8":
	default:
		return "", errType
	}
	return strings.ToLower(strings.Trim(media, " \t")), nil
}
