package amend

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// ruled returns a policy for api.example.com with request rules.
func ruled(rules ...match.RequestRule) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}, Rules: rules}
}

func rule(action, method, path string) match.RequestRule {
	r := match.RequestRule{Hosts: []string{"api.example.com"}, Action: action}
	if method != "" {
		r.Methods = []string{method}
	}
	if path != "" {
		r.Paths = []string{path}
	}
	return r
}

func decides(c *policy.Compiled, method, path string) bool {
	n, _ := name.Parse("api.example.com")
	return c.Decide(policy.Request{Stage: policy.StageHTTP, Name: n, Port: 443, Protocol: policy.TCP, Method: method, Path: path}).Allowed()
}

// TestRequestEntries: the texts of entries for requests, and what is none.
func TestRequestEntries(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"GET api.example.com:443/", "DELETE api.example.com:8443/v1/*", "PROPFIND xn--bcher-kva.example:80/a%20b"} {
		if e, err := ParseRequestEntry(s); err != nil || e.String() != s {
			t.Errorf("%q: %v %v", s, e, err)
		}
	}
	for _, s := range []string{
		"", "GET", "/", "GET /", "GET api.example.com/", "GET api.example.com:0/", "GET api.example.com:65536/", "GET 192.0.2.1:443/", "GET *.example.com:443/",
		"get api.example.com:443/", "G T api.example.com:443/", "\x1b[2J api.example.com:443/", "CONNECT api.example.com:443/", "TRACE api.example.com:443/", "* api.example.com:443/",
		"GET api.example.com:443/a?b", "GET api.example.com:443/a#b", "GET api.example.com:443/a b", "GET api.example.com:443/a\x1b[2J", "GET api.example.com:443/\u202ea",
		"GET api.example.com:443/../a", "GET api.example.com:443//a", "GET api.example.com:443/a/./b", "GET api.example.com:443/a%2fb", "GET api.example.com:443/a%2e", "GET api.example.com:443/a%",
		"GET api.example.com:443/a%2*", "GET api.example.com:443/a*b", "GET api.example.com:443/**", "GET api.example.com:443/a;b", "GET api.example.com:443/" + strings.Repeat("a", 1024),
	} {
		if e, err := ParseRequestEntry(s); err == nil {
			t.Errorf("%q is %v", s, e)
		}
	}
}

// TestAllowBefore: an entry opens its requests and no others, whatever the rules around the denying one, and has no effect once that rule
// has gone.
func TestAllowBefore(t *testing.T) {
	t.Parallel()
	query := match.Match{Query: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact("admin")}}}}
	onQuery := rule("deny", "", "")
	onQuery.Match = &query
	onPath := rule("deny", "", "")
	onPath.Match = &match.Match{Methods: []string{"DELETE"}, Path: match.Prefix("/v1/")}
	mcp := rule("deny", "POST", "/mcp")
	mcp.Match = &match.Match{MCP: &match.MCP{Methods: []string{"tools/call"}}}
	for _, c := range []struct {
		why   string
		spec  policy.Spec
		entry string
		opens bool
	}{
		{"a method", ruled(rule("deny", "DELETE", "")), "DELETE api.example.com:443/v1/x", true},
		{"everything but reading", ruled(rule("allow", "GET", ""), rule("deny", "", "")), "DELETE api.example.com:443/v1/*", true},
		{"in a match", ruled(onPath), "DELETE api.example.com:443/v1/x", true},
		{"allowed", ruled(rule("deny", "DELETE", "")), "GET api.example.com:443/v1/x", false},
		{"no rule", ruled(), "GET api.example.com:443/v1/x", false},
		{"only some of the paths are denied", ruled(rule("deny", "", "/v1/")), "GET api.example.com:443/v1/*", false},
		{"only some of the paths are denied by the first", ruled(rule("deny", "", "/v1/a*"), rule("deny", "", "/v1/*")), "GET api.example.com:443/v1/*", true},
		{"a query", ruled(onQuery), "GET api.example.com:443/v1/x", false},
		{"messages", ruled(mcp), "POST api.example.com:443/mcp", false},
		{"messages before another rule", ruled(mcp, rule("deny", "POST", "")), "POST api.example.com:443/mcp", false},
		{"a repository", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}, Repos: []match.RepoRule{{Host: "api.example.com", Name: "a/b", Access: "read"}}}, "POST api.example.com:443/a/b/git-receive-pack", false},
	} {
		e, err := ParseRequestEntry(c.entry)
		if err != nil {
			t.Fatal(err)
		}
		before := compiled(t, c.spec)
		denying, err := e.Denying(before)
		if (err == nil) != c.opens {
			t.Errorf("%s: %v", c.why, err)
		}
		if err != nil {
			continue
		}
		next, ok := e.AllowBefore(c.spec, DigestOf(denying))
		if !ok || len(next.Rules) != len(c.spec.Rules)+1 {
			t.Fatalf("%s: %v %v", c.why, ok, next.Rules)
		}
		after := compiled(t, next)
		path := strings.TrimSuffix(c.entry[strings.Index(c.entry, "/"):], "*")
		method, _, _ := strings.Cut(c.entry, " ")
		for _, m := range []string{"GET", "POST", "DELETE", "delete", "PUT"} {
			for _, p := range []string{path, path + "z", path + "z/y", "/", "/other", "/v1", "/v1/a", "/v1/a/..", "//v1/x", "/v1/%78"} {
				own := m == method && (p == path || strings.HasSuffix(c.entry, "*") && strings.HasPrefix(p, path)) && !match.IsAmbiguous(p) && !strings.HasPrefix(p, "/v1/a")
				if was, is := decides(before, m, p), decides(after, m, p); is != (was || own) && !(own && was) && !strings.HasPrefix(p, "/v1/a") || is && !was && m != method {
					t.Errorf("%s: %s %s: %v, then %v", c.why, m, p, was, is)
				}
			}
		}
		if !decides(after, method, path) {
			t.Errorf("%s: it is not open", c.why)
		}
		if again, ok := e.AllowBefore(next, DigestOf(denying)); !ok || len(again.Rules) != len(next.Rules) {
			t.Errorf("%s: added twice: %v", c.why, again.Rules)
		}
		changed := c.spec
		changed.Rules = slices.Clone(changed.Rules)
		for i := range changed.Rules {
			changed.Rules[i].Methods = append(slices.Clone(changed.Rules[i].Methods), "PATCH")
		}
		if same, ok := e.AllowBefore(changed, DigestOf(denying)); ok || len(same.Rules) != len(changed.Rules) {
			t.Errorf("%s: it precedes a rule that has changed", c.why)
		}
	}
	// Several entries precede their rules, the first of equal ones, and those without a rule are left out.
	both := ruled(rule("deny", "", "/a*"), rule("deny", "DELETE", ""), rule("deny", "DELETE", ""))
	var list []Preceding
	for text, i := range map[string]int{"GET api.example.com:443/a/1": 0, "DELETE api.example.com:443/b": 1} {
		e, err := ParseRequestEntry(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Preceding{e, DigestOf(both.Rules[i])}, Preceding{e, "gone"})
	}
	next, placed := AllowRequests(both, list)
	if placed != 2 || len(next.Rules) != 5 || len(both.Rules) != 3 || next.Rules[0].Paths[0] != "/a/1" || next.Rules[2].Paths[0] != "/b" {
		t.Error(placed, next.Rules)
	}
	full := ruled(rule("deny", "", ""))
	for len(full.Rules) < match.MaxRules {
		full.Rules = append(full.Rules, rule("allow", "GET", "/"))
	}
	e, _ := ParseRequestEntry("GET api.example.com:443/x")
	if _, ok := e.AllowBefore(full, DigestOf(full.Rules[0])); ok {
		t.Error("more rules than a policy takes")
	}
}

// TestAllowBeforeOpensNoOther compares the decisions before and after for many policies, entries and requests: only requests of the
// entry are opened, and none is closed.
func TestAllowBeforeOpensNoOther(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	methods := []string{"GET", "POST", "DELETE", "HEAD", "OPTIONS", "delete", "Get"}
	paths := []string{"/", "/v1", "/v1/", "/v1/x", "/v1/x/y", "/v1/X", "/v10", "/v1/a%20b", "/v1/a", "/other"}
	odd := []string{"/v1/../other", "/v1//x", "/v1/%78", "/v1/x;y", "/v1%2fx", "/v1/.", "/v1/x%", "*", "/v1/*"}
	pick := func(of []string) string { return of[random.IntN(len(of))] }
	path := func() string { return pick(paths) + pick([]string{"", "", "*"}) }
	someRule := func() match.RequestRule {
		r := match.RequestRule{Hosts: []string{pick([]string{"api.example.com", "api.example.com:443", "*.example.com", "*", "api.example.com:80"})}, Action: pick([]string{"deny", "deny", "allow"})}
		if random.IntN(2) == 0 {
			r.Methods = []string{pick(methods[:5])}
		}
		switch random.IntN(6) {
		case 0, 1:
			r.Paths = []string{path(), path()}
		case 2:
			r.Match = &match.Match{Path: match.Prefix(pick(paths))}
		case 3:
			r.Match = &match.Match{Path: match.Regex("^/v1/[a-z]*$")}
		case 4:
			r.Match = &match.Match{Query: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact("admin")}}}}
		}
		return r
	}
	n, _ := name.Parse("api.example.com")
	opened := 0
	for range 3000 {
		var rules []match.RequestRule
		for range 1 + random.IntN(4) {
			rules = append(rules, someRule())
		}
		spec, method, of := ruled(rules...), pick(methods[:5]), path()
		e, err := NewRequestEntry(n, 443, method, of)
		if err != nil {
			t.Fatal(of, err)
		}
		before := compiled(t, spec)
		denying, err := e.Denying(before)
		if err != nil {
			continue
		}
		next, ok := e.AllowBefore(spec, DigestOf(denying))
		if !ok {
			t.Fatalf("%v: no place for %v", rules, e)
		}
		after := compiled(t, next)
		prefix, isPrefix := strings.CutSuffix(of, "*")
		for _, m := range methods {
			for _, at := range slices.Concat(paths, odd) {
				for _, port := range []uint16{443, 80} {
					for _, query := range []string{"", "admin=1"} {
						r := policy.Request{Stage: policy.StageHTTP, Name: n, Port: port, Protocol: policy.TCP, Method: m, Path: at, Query: query}
						was, is := before.Decide(r).Allowed(), after.Decide(r).Allowed()
						own := m == method && port == 443 && (at == of || isPrefix && strings.HasPrefix(at, prefix)) && !match.IsAmbiguous(at)
						if is != was && (was || !own) {
							t.Fatalf("%v with %v: %s %d %s?%s: %v, then %v", rules, e, m, port, at, query, was, is)
						}
						if is && !was {
							opened++
						}
					}
				}
			}
		}
	}
	if opened < 1000 {
		t.Errorf("only %d requests were opened", opened)
	}
}

// FuzzRequestEntry: an entry has one text, which cannot carry control characters, and its rule compiles.
func FuzzRequestEntry(f *testing.F) {
	f.Add("GET api.example.com:443/v1/*")
	f.Add("DELETE xn--bcher-kva.example:1/a%20b")
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseRequestEntry(s)
		if err != nil {
			return
		}
		again, err := ParseRequestEntry(e.String())
		if err != nil || again != e {
			t.Fatalf("%q: %v, then %v: %v", s, e, again, err)
		}
		if strings.ContainsFunc(e.String(), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q", e.String())
		}
		if _, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{e.rule()}}, policy.Options{}); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
