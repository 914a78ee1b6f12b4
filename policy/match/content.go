package match

import (
	"slices"
	"strings"

	"boxgate/policy/content"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// MCP is met by a request over streamable HTTP if each of its JSON-RPC messages is covered. Names ending in "*" are prefixes.
type MCP struct {
	Methods []string `json:"methods,omitempty" doc:"JSON-RPC methods, such as tools/list; a name ending in * is a prefix"`
	Tools   []string `json:"tools,omitempty" doc:"tools that tools/call may call; a name ending in * is a prefix. With it, methods does not cover tools/call"`
	Session bool     `json:"session,omitempty" doc:"what every session needs: initialize, ping, notifications, responses to the server, and GET and DELETE without a body"`
}

// GraphQL is met by a request if each of its operations meets all given parts. Names ending in "*" are prefixes.
type GraphQL struct {
	Operations []string `json:"operations,omitempty" enum:"query mutation subscription" doc:"the kind of the operation"`
	Names      []string `json:"names,omitempty" doc:"the name of the operation, which the client chooses"`
	Fields     []string `json:"fields,omitempty" doc:"covers every root field, whatever its alias, also in fragments"`
	Persisted  []string `json:"persisted,omitempty" doc:"IDs and SHA-256 hashes of persisted queries that an allowing rule covers as well"`
}

// SchemaName is the name in the description of the API.
func (MCP) SchemaName() string { return "MatchMCP" }

// SchemaName is the name in the description of the API.
func (GraphQL) SchemaName() string { return "MatchGraphQL" }

// maxContentNames is the maximum length of a list of names.
const maxContentNames = 256

// sessionMethods are the methods that every session of MCP needs.
var sessionMethods = patterns{"initialize", "ping", "notifications/*"}

// patterns are names, or prefixes if they end in "*".
type patterns []string

// fit compares a name. A difference in case only is unsure.
func (ps patterns) fit(s string) (f Fit) {
	for _, p := range ps {
		prefix, star := strings.CutSuffix(p, "*")
		switch {
		case s == p, star && strings.HasPrefix(s, prefix):
			return Fits
		case strings.EqualFold(s, p), star && strings.HasPrefix(strings.ToLower(s), strings.ToLower(prefix)):
			f = Unsure
		}
	}
	return f
}

// contents is the compiled condition on the messages of a request.
type contents struct {
	kind content.Kind // 0: no condition
	mcp  MCP
	gql  GraphQL
}

// compileContents checks the conditions of a request rule on messages. deny reports whether the rule denies.
func compileContents(at string, m *Match, deny bool, ps *document.Problems) (out contents) {
	if m.MCP != nil && m.GraphQL != nil {
		ps.Add(at, "has mcp and graphql; no request is both")
	}
	if m.MCP != nil {
		at := at + "/mcp"
		out.kind, out.mcp = content.MCP, *m.MCP
		checkNames(at+"/methods", m.MCP.Methods, ps)
		checkNames(at+"/tools", m.MCP.Tools, ps)
		if m.MCP.Methods == nil && m.MCP.Tools == nil && !m.MCP.Session {
			ps.Add(at, `is empty; {"methods": ["*"]} covers every method`)
		}
	}
	if g := m.GraphQL; g != nil {
		at := at + "/graphql"
		out.kind, out.gql = content.GraphQL, *g
		checkNames(at+"/names", g.Names, ps)
		checkNames(at+"/fields", g.Fields, ps)
		checkNames(at+"/persisted", g.Persisted, ps)
		checkKinds(at+"/operations", g.Operations, ps)
		if deny && g.Persisted != nil {
			ps.Add(at+"/persisted", "a rule that denies covers every persisted query anyway; list those to allow in an earlier rule that allows")
		}
		if g.IsZero() {
			ps.Add(at, `is empty; {"fields": ["*"]} covers every operation`)
		}
	}
	return out
}

// IsZero reports whether g has no conditions.
func (g *GraphQL) IsZero() bool {
	return g.Operations == nil && g.Names == nil && g.Fields == nil && g.Persisted == nil
}

func checkNames(at string, names []string, ps *document.Problems) {
	if names != nil && len(names) == 0 {
		ps.Add(at, "is empty; leave it out")
	}
	if ps.TooMany(at, len(names), maxContentNames) {
		return
	}
	for i, s := range names {
		switch at := document.Element(at, i); {
		case s == "" || len(s) > 256:
			ps.Add(at, "must have between 1 and 256 characters")
		case strings.Contains(strings.TrimSuffix(s, "*"), "*"):
			ps.Add(at, "%s has a * that is not at the end", name.Quote(s))
		case strings.TrimSpace(s) != s:
			ps.Add(at, "%s begins or ends with a space", name.Quote(s))
		}
	}
}

func checkKinds(at string, kinds []string, ps *document.Problems) {
	if kinds != nil && len(kinds) == 0 {
		ps.Add(at, "is empty; leave it out")
	}
	for i, s := range kinds {
		if s != "query" && s != "mutation" && s != "subscription" {
			ps.Add(document.Element(at, i), "%s is no kind of operation; use query, mutation or subscription", name.Quote(s))
		}
	}
}

// refuseContents adds a problem for conditions on messages in a match that is judged before the body is read.
func refuseContents(at string, m *Match, ps *document.Problems) {
	const why = "only the request rules of a policy match messages; restrict the host by rules, and leave this out here"
	if m.MCP != nil {
		ps.Add(at+"/mcp", why)
	}
	if m.GraphQL != nil {
		ps.Add(at+"/graphql", why)
	}
}

// fit compares the messages of a request, which were read. Batches fit if all of their messages fit, and are unsure if some do.
func (c *contents) fit(of *content.Content, e *effort) Fit {
	if !e.spend(c.steps(of)) {
		return Unsure
	}
	least, most := Fits, Unfit
	add := func(f Fit) { least, most = min(least, f), max(most, f) }
	if c.kind == content.MCP {
		for i := range of.Messages {
			add(c.mcp.fit(&of.Messages[i]))
		}
	} else {
		for i := range of.Operations {
			add(c.gql.fit(&of.Operations[i]))
		}
	}
	if most == Unfit { // also without messages
		return Unfit
	}
	return agreed(least, most)
}

// contentSteps is the effort of comparing a name with a pattern.
const contentSteps = 32

// steps returns the effort of comparing the messages of a request.
func (c *contents) steps(of *content.Content) (n int) {
	if c.kind == content.MCP {
		return contentSteps * len(of.Messages) * (1 + len(c.mcp.Methods) + len(c.mcp.Tools))
	}
	for i := range of.Operations {
		n += contentSteps * (1 + len(c.gql.Names) + len(c.gql.Persisted) + len(of.Operations[i].Fields)*len(c.gql.Fields))
	}
	return n
}

func (m *MCP) fit(msg *content.Message) (f Fit) {
	if msg.Session {
		if m.Session {
			return Fits
		}
		return Unfit
	}
	if m.Tools != nil && msg.Method == content.CallTool {
		return patterns(m.Tools).fit(msg.Tool)
	}
	if m.Session {
		f = sessionMethods.fit(msg.Method)
	}
	return max(f, patterns(m.Methods).fit(msg.Method))
}

func (g *GraphQL) fit(o *content.Operation) Fit {
	switch rest := g.Operations != nil || g.Names != nil || g.Fields != nil; {
	case o.Persisted != "" && slices.ContainsFunc(g.Persisted, func(s string) bool { return strings.EqualFold(s, o.Persisted) }):
		return Fits
	case o.Persisted != "" && rest:
		return Unsure // the text is unknown
	case !rest:
		return Unfit
	}
	f := Fits
	if g.Operations != nil && !slices.Contains(g.Operations, o.Type) {
		return Unfit
	}
	if g.Names != nil {
		f = patterns(g.Names).fit(o.Name)
	}
	if g.Fields != nil {
		least, most := Fits, Unfit
		for _, field := range o.Fields {
			one := patterns(g.Fields).fit(field)
			least, most = min(least, one), max(most, one)
		}
		f = min(f, agreed(least, most))
	}
	return f
}

// describe returns the condition in one line, for decisions.
func (m *MCP) describe() string {
	parts := []string{"mcp"}
	if m.Session {
		parts = append(parts, "session")
	}
	return describeNames(parts, []string{"methods", "tools"}, m.Methods, m.Tools)
}

func (g *GraphQL) describe() string {
	return describeNames([]string{"graphql"}, []string{"operations", "names", "fields", "persisted"},
		g.Operations, g.Names, g.Fields, g.Persisted)
}

func describeNames(parts, keys []string, lists ...[]string) string {
	for i, list := range lists {
		if list != nil {
			parts = append(parts, keys[i]+"="+strings.Join(list, ","))
		}
	}
	return strings.Join(parts, " ")
}

// covers reports whether m certainly covers all messages that other covers.
func (m *MCP) covers(other *MCP) bool {
	if m == nil || other == nil {
		return m == nil
	}
	if other.Session && !m.Session || !patterns(m.Methods).coverAll(other.Methods) {
		return false
	}
	switch {
	case m.Tools == nil:
		return other.Tools == nil || patterns(m.Methods).fit(content.CallTool) == Fits
	case other.Tools == nil:
		return patterns(other.Methods).fit(content.CallTool) == Unfit
	}
	return patterns(m.Tools).coverAll(other.Tools)
}

// covers reports whether g certainly covers all operations that other covers.
func (g *GraphQL) covers(other *GraphQL) bool {
	if g == nil || other == nil {
		return g == nil
	}
	one := func(all, some []string) bool { return all == nil || some != nil && patterns(all).coverAll(some) }
	return g.Persisted == nil && other.Persisted == nil &&
		one(g.Operations, other.Operations) && one(g.Names, other.Names) && one(g.Fields, other.Fields)
}

func (ps patterns) coverAll(names []string) bool {
	return !slices.ContainsFunc(names, func(s string) bool {
		base, star := strings.CutSuffix(s, "*")
		return !slices.ContainsFunc(ps, func(p string) bool {
			prefix, wide := strings.CutSuffix(p, "*")
			return p == s || wide && strings.HasPrefix(base, prefix) && (star || base == s)
		})
	})
}

func readMCP(at string, v document.Value, ps *document.Problems) *MCP {
	var m MCP
	v.Fields(at, "an object with methods, tools and session", ps, map[string]func(string, document.Value){
		"methods": func(at string, v document.Value) { m.Methods = v.AsStrings(at, ps) },
		"tools":   func(at string, v document.Value) { m.Tools = v.AsStrings(at, ps) },
		"session": func(at string, v document.Value) {
			if m.Session = v.Truth; v.Kind != document.Bool {
				ps.Add(at, "is %s; want true or false", v.Kind)
			}
		},
	})
	return &m
}

func readGraphQL(at string, v document.Value, ps *document.Problems) *GraphQL {
	var g GraphQL
	list := func(to *[]string) func(string, document.Value) {
		return func(at string, v document.Value) { *to = v.AsStrings(at, ps) }
	}
	v.Fields(at, "an object with operations, names, fields and persisted", ps, map[string]func(string, document.Value){
		"operations": list(&g.Operations), "names": list(&g.Names), "fields": list(&g.Fields), "persisted": list(&g.Persisted),
	})
	return &g
}
