package match

import (
	"slices"
	"strings"

	"boxgate/policy/content"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// RequestRule judges requests to its hosts. The first matching rule decides; without a match the request is allowed. A rule
// never allows requests that the rest of the policy denies. A host without a port covers every port, so that another port does
// not bypass the rule. Empty Methods or Paths match every method or path. A path ending in "*" is a prefix, else it must match
// exactly. Paths are compared both as sent and with percent-encoding resolved: a rule denies if either form matches, and
// allows only if both do. A path that servers may interpret differently, with "." and ".." segments, repeated or encoded
// slashes and the like, is denied on every host that a rule covers ([name.ReasonAmbiguousPath]).
type RequestRule struct {
	Hosts   []string `json:"hosts"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Match   *Match   `json:"match,omitempty" doc:"further conditions; a rule that denies applies if some server may read the request so, one that allows only if all do"`
	Action  string   `json:"action" enum:"allow deny"`
}

// The actions of a request rule.
const (
	ActionAllow = "allow"
	ActionDeny  = "deny"
)

// Limits of request rules.
const (
	MaxRules        = 256 // of a policy
	maxRuleElements = 256 // hosts, methods or paths of one rule
)

// CompiledRule is a compiled RequestRule.
type CompiledRule struct {
	Hosts   []name.Pattern
	methods []string
	paths   []pathPattern
	Match   *Conditions // on the head; nil: every request
	content contents
	Deny    bool
	Rule    string
}

// Covers reports whether the rule applies to the host and port.
func (r *CompiledRule) Covers(n name.Name, port uint16) bool {
	for _, h := range r.Hosts {
		if h.Match(n, port) {
			return true
		}
	}
	return false
}

// Outcome is the result of applying a rule to a request.
type Outcome uint8

// The outcomes.
const (
	Passes     Outcome = iota // the next rule is applied
	Decides                   // the rule decides
	Unread                    // the rule depends on messages in the body, which has not been read
	Unreadable                // the rule depends on messages that cannot be read
)

// Apply applies the rule to a request to a host that it covers.
func (r *CompiledRule) Apply(req *Request) Outcome {
	if len(r.methods) > 0 && !r.hasMethod(req.method) || !r.hasPath(req.plain, req.clean) {
		return Passes
	}
	if r.Match == nil {
		return Decides
	}
	f := r.Match.Fit(req)
	if kind := r.content.kind; kind != 0 && r.applies(f) {
		switch {
		case !req.content.Has(kind):
			return Unread
		case req.content.Flaw(kind) != "":
			return Unreadable
		}
		f = min(f, r.content.fit(req.content, &req.effort))
	}
	if r.applies(f) {
		return Decides
	}
	return Passes
}

// applies reports whether the rule applies to a request with a fit.
func (r *CompiledRule) applies(f Fit) bool { return f == Fits || r.Deny && f == Unsure }

// Reads returns the kind of messages that the rule depends on, or 0.
func (r *CompiledRule) Reads() content.Kind { return r.content.kind }

// hasPath reports whether the rule covers a path. plain is the path as sent, clean the resolved form.
func (r *CompiledRule) hasPath(plain, clean string) bool {
	if len(r.paths) == 0 {
		return true
	}
	// The server may interpret the path in either form: a denying rule must match one of them, an allowing rule both.
	for _, p := range r.paths {
		asSent, resolved := matchPath(p.plain, p.prefix, plain), matchPath(p.clean, p.prefix, clean)
		if asSent && resolved || r.Deny && (asSent || resolved) {
			return true
		}
	}
	return false
}

// hasMethod reports whether the rule covers a method. Methods are case-sensitive (RFC 9110, 9.1), but some servers
// ignore case. Therefore rules that deny do as well.
func (r *CompiledRule) hasMethod(method string) bool {
	return slices.Contains(r.methods, method) ||
		r.Deny && slices.ContainsFunc(r.methods, func(m string) bool { return strings.EqualFold(m, method) })
}

// describe returns a rule in one line, for decisions.
func describe(r RequestRule) string {
	s := r.Action
	if len(r.Methods) > 0 {
		s += " " + strings.Join(r.Methods, ",")
	}
	s += " " + strings.Join(r.Hosts, ",")
	if len(r.Paths) > 0 {
		s += " " + strings.Join(r.Paths, ",")
	}
	if r.Match != nil {
		s += " " + r.Match.String()
	}
	return s
}

func ReadRules(at string, v document.Value, ps *document.Problems) []RequestRule {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of rules", v.Kind)
		return nil
	}
	rules := make([]RequestRule, len(v.Items))
	for i, item := range v.Items {
		r := &rules[i]
		item.Fields(document.Element(at, i), "an object with hosts and action", ps, map[string]func(string, document.Value){
			"hosts":   func(at string, v document.Value) { r.Hosts = v.AsStrings(at, ps) },
			"methods": func(at string, v document.Value) { r.Methods = v.AsStrings(at, ps) },
			"paths":   func(at string, v document.Value) { r.Paths = v.AsStrings(at, ps) },
			"match":   func(at string, v document.Value) { r.Match = Read(at, v, ps) },
			"action":  func(at string, v document.Value) { r.Action = v.AsString(at, ps) },
		})
	}
	return rules
}

func CompileRules(at string, rules []RequestRule, ps *document.Problems) []CompiledRule {
	if ps.TooMany(at, len(rules), MaxRules) {
		return nil
	}
	out := make([]CompiledRule, 0, len(rules))
	for i, r := range rules {
		out = append(out, compileRule(document.Element(at, i), r, ps))
	}
	return out
}

func compileRule(at string, r RequestRule, ps *document.Problems) CompiledRule {
	if ps.TooMany(at+"/hosts", len(r.Hosts), maxRuleElements) || ps.TooMany(at+"/methods", len(r.Methods), maxRuleElements) ||
		ps.TooMany(at+"/paths", len(r.Paths), maxRuleElements) {
		return CompiledRule{}
	}
	if len(r.Hosts) == 0 {
		ps.Add(at+"/hosts", `is empty; name the hosts, or use "*" for all of them`)
	}
	// An empty list would match every request.
	if r.Methods != nil && len(r.Methods) == 0 {
		ps.Add(at+"/methods", "is empty; leave it out to match every method")
	}
	if r.Paths != nil && len(r.Paths) == 0 {
		ps.Add(at+"/paths", "is empty; leave it out to match every path")
	}
	out := CompiledRule{Deny: r.Action != ActionAllow, methods: r.Methods, Rule: describe(r)}
	for i, s := range r.Hosts {
		if p, ok := ps.Pattern(document.Element(at+"/hosts", i), s); ok {
			out.Hosts = append(out.Hosts, p)
		}
	}
	if r.Match != nil {
		if len(r.Methods) > 0 && len(r.Match.Methods) > 0 {
			ps.Add(at+"/match/methods", "methods are given in the rule as well; give them in one place")
		}
		out.Match = compileHead(at+"/match", *r.Match, ps)
		out.content = compileContents(at+"/match", r.Match, out.Deny, ps)
		if r.Match.MCP != nil && r.Match.MCP.Session && !out.Deny && len(r.Paths) == 0 && r.Match.Path == nil {
			ps.Add(at+"/match/mcp/session", "needs the path of the MCP server in the rule: it allows GET and DELETE there")
		}
	}
	for i, m := range r.Methods {
		checkMethod(document.Element(at+"/methods", i), m, ps)
	}
	for i, p := range r.Paths {
		out.paths = append(out.paths, checkPath(document.Element(at+"/paths", i), p, ps))
	}
	switch r.Action {
	case ActionAllow, ActionDeny:
	case "":
		ps.Add(at+"/action", `is missing; use "allow" or "deny"`)
	default:
		ps.Add(at+"/action", `%s is no action; use "allow" or "deny"`, name.Quote(r.Action))
	}
	return out
}

func checkMethod(at, m string, ps *document.Problems) {
	for i := range len(m) {
		if !name.IsToken(m[i]) {
			ps.Add(at, "%s is not an HTTP method", name.Quote(m))
			return
		}
	}
	switch {
	case m == "" || len(m) > 64:
		ps.Add(at, "%s is not an HTTP method", name.Quote(m))
	case m == "*":
		ps.Add(at, `"*" is not an HTTP method; leave methods out to match every one`)
	case m != strings.ToUpper(m):
		// Methods are case-sensitive (RFC 9110 9.1): "delete" would never match a DELETE.
		ps.Add(at, "%s is not in capitals; use %q", name.Quote(m), strings.ToUpper(m))
	}
}

// Clone returns a copy that shares nothing with r.
func (r RequestRule) Clone() RequestRule {
	r.Hosts = slices.Clone(r.Hosts)
	r.Methods = slices.Clone(r.Methods)
	r.Paths = slices.Clone(r.Paths)
	r.Match = r.Match.Clone()
	return r
}

// DecidesAllOf reports whether r decides every request that other decides. Rules that allow decide only requests that certainly match, rules
// that deny also requests that possibly match.
func (r RequestRule) DecidesAllOf(other RequestRule) bool {
	all := len(r.Methods) == 0 && len(r.Paths) == 0 && r.Match == nil
	if !all && r.Action == ActionAllow && other.Action != ActionAllow {
		return false
	}
	for _, host := range other.Hosts {
		p, err := name.ParsePattern(host)
		if err != nil || !slices.ContainsFunc(r.Hosts, func(s string) bool {
			q, err := name.ParsePattern(s)
			return err == nil && q.Covers(p)
		}) {
			return false
		}
	}
	return coversMethods(r.Methods, other.Methods) && (len(r.Paths) == 0 || coversPaths(r.Paths, other.Paths)) && Covers(r.Match, other.Match)
}

// Request is a request for matchers, with the path as sent and resolved. It has no pointer to the original request, which would
// have to be allocated.
type Request struct {
	method, plain, clean, query string
	fields                      *Fields
	content                     *content.Content
	effort                      effort
}

// NewRequest returns a request for matchers. path is as sent, and query has no question mark. c is nil until the body has been read.
func NewRequest(method, path, query string, fields *Fields, c *content.Content) Request {
	if path == "" {
		path = "/"
	}
	return Request{method, path, resolvePath(path), query, fields, c, effort{fullEffort}}
}

// IsZero reports whether r is the zero Request.
func (r *Request) IsZero() bool { return r.plain == "" }

// IsAmbiguous reports whether servers may interpret the path differently.
func (r *Request) IsAmbiguous() bool { return IsAmbiguous(r.plain) }

// Conditions is a compiled [Match].
type Conditions struct {
	methods        []string
	path           *pathMatcher
	query, headers []pairMatcher
}

// pathMatcher compares a path as sent and resolved.
type pathMatcher struct{ sent, resolved textMatcher }

// pairMatcher is a compiled [Pair].
type pairMatcher struct {
	key, value textMatcher
	anyValue   bool
	folded     string // form of an exact key for servers that rewrite names
}

// Fit compares a request.
func (m *Conditions) Fit(r *Request) Fit {
	f := m.fitMethod(r.method)
	if m.path != nil && f > Unfit {
		f = min(f, m.path.fit(r))
	}
	for i := 0; i < len(m.query) && f > Unfit; i++ {
		f = min(f, m.query[i].fitQuery(r.query, &r.effort))
	}
	for i := 0; i < len(m.headers) && f > Unfit; i++ {
		f = min(f, m.headers[i].fitFields(r.fields, &r.effort))
	}
	return f
}

// fitMethod compares a method. Methods are case-sensitive (RFC 9110, 9.1), but some servers ignore that.
func (m *Conditions) fitMethod(method string) Fit {
	switch {
	case len(m.methods) == 0 || slices.Contains(m.methods, method):
		return Fits
	case slices.ContainsFunc(m.methods, func(s string) bool { return strings.EqualFold(s, method) }):
		return Unsure
	}
	return Unfit
}

func (m *pathMatcher) fit(r *Request) Fit {
	sent := m.sent.one(r.plain, &r.effort)
	resolved := sent
	if r.clean != r.plain || m.resolved.text != m.sent.text {
		resolved = m.resolved.one(r.clean, &r.effort)
	}
	return agreed(min(sent, resolved), max(sent, resolved))
}

// LooksAtPath reports whether the path matters to the rule.
func (r *CompiledRule) LooksAtPath() bool { return len(r.paths) > 0 || r.Match.LooksAtPath() }

// LooksAtValues reports whether the value of some parameter of a query matters.
func (m *Conditions) LooksAtValues(query string) bool {
	if m == nil || query == "" {
		return false
	}
	spent := effort{fullEffort}
	for name := range strings.SplitSeq(query, "&") {
		name, _, _ = strings.Cut(name, "=")
		for i := range m.query {
			if p := &m.query[i]; !p.anyValue && p.fitName(name, &spent) > Unfit {
				return true
			}
		}
	}
	return false
}

// LooksAtPath reports whether the path matters.
func (m *Conditions) LooksAtPath() bool { return m != nil && m.path != nil }

// LooksAtQuery reports whether the query matters.
func (m *Conditions) LooksAtQuery() bool { return m != nil && len(m.query) > 0 }

// LooksAtFields reports whether header fields matter.
func (m *Conditions) LooksAtFields() bool { return m != nil && len(m.headers) > 0 }

// Needs returns the header fields that the matcher looks at.
func (m *Conditions) Needs() (n Needs) {
	if m == nil {
		return n
	}
	for i := range m.headers {
		if h := &m.headers[i]; h.key.exact {
			n.Add(Needs{names: []string{h.folded}})
		} else {
			n.all = true
		}
	}
	return n
}
