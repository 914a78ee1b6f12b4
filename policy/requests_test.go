package policy

import (
	"fmt"
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule/header"
)

// TestAlternatives: the first alternative of the most specific pattern that surely covers the request applies alone. A denying
// alternative also applies if it may cover the request. If it is uncertain whether another alternative covers the request, the
// request is refused, and the next alternative does not apply.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, `{
		"*.example.com": {"X-Key": "wide"},
		"api.example.com": [
			{"match": {"path": {"prefix": "/admin"}}, "deny": true},
			{"match": {"path": {"prefix": "/public/"}}, "headers": {}},
			{"match": {"methods": ["GET"], "query": {"team": {"exact": "blue"}}}, "headers": {"X-Key": "reader"}, "remove": ["X-Debug"]},
			{"match": {"headers": {"X-Role": {"exact": "root"}}}, "headers": {"X-Key": "root"}}]}`)
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 9, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	host, _ := name.Parse("api.example.com")
	for request, want := range map[string]string{
		"GET /admin/x": "header_rule", "GET /Admin": "header_rule", "GET /a//b": "ambiguous_path", "GET /admi%6E": "ambiguous_path",
		"GET /public/x?team=blue": "", "GET /x?team=blue": "reader", "GET /x?team=red": "", "POST /x?team=blue": "",
		"GET /x?team=blue&team=red": "ambiguous_request", "get /x?team=blue": "ambiguous_request",
		"POST /x\nX-Role: root": "root", "POST /x\nx_role: root": "ambiguous_request", "POST /x\nX-Role: user": "",
	} {
		r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP}
		r.Fields = &match.Fields{Needs: c.Needs(host, 443)}
		lines := strings.Split(request, "\n")
		method, target, _ := strings.Cut(lines[0], " ")
		r.Method = method
		r.Path, r.Query, _ = strings.Cut(target, "?")
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			r.Fields.List = append(r.Fields.List, match.Field{Name: name, Value: value})
		}
		rule, d := c.HeaderRule(r)
		got := string(d.Reason)
		if set := header.Of(rule.Effects); len(set) > 0 {
			got += set[len(set)-1].Literal.Reveal()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", request, got, want)
		}
		if rt := c.Route(r, Evidence{Opening: OpeningSecure}); (rt.Action == Refuse) != (d.Reason != "") || rt.Action == Refuse && (rt.Decision.Reason != d.Reason || rt.Decision.Version != 9) {
			t.Errorf("%q: the route %+v", request, rt)
		}
	}
	if other, _ := name.Parse("x.example.com"); c.Needs(other, 443) != nil {
		t.Error("a host whose rules look at no header needs some")
	}
}

// TestRulesThatComeLater: a request whose headers were not kept is cut by a new rule that may deny it, and by no other rule.
func TestRulesThatComeLater(t *testing.T) {
	t.Parallel()
	host, _ := name.Parse("api.example.com")
	r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: "/"}
	for doc, want := range map[string]name.Reason{
		`{"api.example.com": {"match": {"headers": {"X-A": {"exact": "1"}}}, "headers": {"X-Key": "k"}}}`:                                                      "",
		`{"api.example.com": {"match": {"headers": {"X-A": {"exact": "1"}}}, "deny": true}}`:                                                                   name.ReasonHeaderRule,
		`{"api.example.com": [{"match": {"path": {"exact": "/"}}, "headers": {"X-Key": "k"}}, {"match": {"headers": {"X-A": {"exact": "1"}}}, "deny": true}]}`: "",
	} {
		c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: mustRules(t, doc), Protected: name.NewProtected(nil, nil)})
		if err != nil {
			t.Fatal(err)
		}
		if rt := c.Route(r, Evidence{Opening: OpeningSecure}); rt.Action == Refuse && rt.Decision.Reason != want || rt.Action != Refuse && want != "" {
			t.Errorf("%s: %+v, want %q", doc, rt.Decision, want)
		}
		if _, d := c.HeaderRule(r); want == "" && strings.HasPrefix(doc, `{"api.example.com": {`) && d.Reason != name.ReasonAmbiguousRequest {
			t.Errorf("%s: a value may go with a request whose headers are unknown: %+v", doc, d)
		}
	}
}

// TestMatchedRequestRules: a rule that denies applies if any server may read the request so, one that allows if all do.
func TestMatchedRequestRules(t *testing.T) {
	t.Parallel()
	spec := mustSpec(t, `{"mode": "allow-all", "rules": [
		{"hosts": ["a.test"], "match": {"query": {"admin": {"prefix": ""}}}, "action": "deny"},
		{"hosts": ["a.test"], "methods": ["GET"], "match": {"path": {"regex": "^/v[12]/"}, "query": {"team": {"exact": "blue"}}}, "action": "allow"},
		{"hosts": ["a.test"], "action": "deny"}]}`)
	c, err := Compile(spec, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	host, _ := name.Parse("a.test")
	for target, want := range map[string]Verdict{
		"/v1/x?team=blue": Allow, "/v1/x?team=blue&x=y": Allow, "/v1/x": Deny, "/v3/x?team=blue": Deny, "/v1/x?team=blue&team=blue": Deny,
		"/v1/x?team=blue&ADMIN=1": Deny, "/v1/x?team=blue&x=1;admin=1": Deny, "/v1/x?Team=blue": Deny, "/V1/x?team=blue": Deny, "/v1//x?team=blue": Deny,
	} {
		r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET"}
		r.Path, r.Query, _ = strings.Cut(target, "?")
		if d := c.Decide(r); d.Verdict != want {
			t.Errorf("%s: %+v, want %s", target, d, want)
		}
	}
}

// TestRulesAllocateNothing: requests are judged without an allocation if the rules of their host do not match on requests, or
// only on the path.
func TestRulesAllocateNothing(t *testing.T) {
	rules := mustRules(t, `{"a.test": {"X-Key": "k"}, "b.test": [{"match": {"path": {"prefix": "/v1/"}}, "headers": {"X-Key": "k"}}],
		"c.test": {"headers": {"X-Key": "k"}, "client_certificate": {"secret": "c"}}}`)
	c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"b.test"}, Paths: []string{"/admin*"}, Action: "deny"}}}, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"a.test", "b.test", "c.test"} {
		hostName, _ := name.Parse(host)
		r := Request{Stage: StageHTTP, Name: hostName, Port: 443, Protocol: TCP, Method: "GET", Path: "/v1/models", Query: "a=b"}
		if n := testing.AllocsPerRun(100, func() {
			if rt := c.Route(r, Evidence{Opening: OpeningSecure}); rt.Action != Forward || c.Needs(hostName, 443) != nil {
				t.Fatal("refused")
			}
			if rule, _ := c.HeaderRule(r); len(header.Of(rule.Effects)) != 1 || (rule.OnConnections().Identity != nil) != (host == "c.test") {
				t.Fatal("no rule")
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", host, n)
		}
	}
}

// manyRules are as many alternatives as a host may have, each with as many conditions of the kind as it may have.
func manyRules(t testing.TB, kind, matcher string) *Compiled {
	t.Helper()
	var pairs, rules []string
	for i := range 16 {
		pairs = append(pairs, fmt.Sprintf(`{"key": {"regex": "^x-[a-z]+%d?"}, "value": %s}`, i, matcher))
	}
	for range MaxAlternatives - 1 {
		rules = append(rules, `{"match": {"`+kind+`": [`+strings.Join(pairs, ",")+`]}, "headers": {"X-Key": "k"}}`)
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: mustRules(t, `{"a.test": [`+strings.Join(rules, ",")+`, {"headers": {"X-Key": "last"}}]}`), Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// costly returns a policy with costly rules, and a request that takes long to compare with them. n is the number of repetitions
// in the compared part of the request.
func costly(t testing.TB, kind string, n int) (*Compiled, Request) {
	t.Helper()
	host, _ := name.Parse("a.test")
	r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: "/"}
	c := manyRules(t, kind, `{"regex": "(a|aa|aaa|[a-c]){1,20}(b|bb)*[^d]*d$"}`)
	r.Fields = &match.Fields{Needs: c.Needs(host, 443)}
	for range n {
		value := strings.Repeat("ab", 40)
		r.Query += "&x-a=" + value
		r.Fields.List = append(r.Fields.List, match.Field{Name: "X-A", Value: value})
	}
	return c, r
}

// TestMatchingIsBounded: a request that would take seconds to compare is refused, as one whose fit is unsure; an ordinary one
// with the same rules is not.
func TestMatchingIsBounded(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"headers", "query"} {
		c, r := costly(t, kind, 1)
		if rule, d := c.HeaderRule(r); d.Reason != "" || len(rule.Effects) != 1 || header.Of(rule.Effects)[0].Literal.Reveal() != "last" {
			t.Errorf("%s: an ordinary request: %+v", kind, d)
		}
		if c, r = costly(t, kind, 500); r.Fields.List != nil {
			if _, d := c.HeaderRule(r); d.Reason != name.ReasonAmbiguousRequest {
				t.Errorf("%s: a costly request: %+v", kind, d)
			}
		}
	}
}

func BenchmarkMatchCostly(b *testing.B) {
	for _, kind := range []string{"headers", "query"} {
		b.Run(kind, func(b *testing.B) {
			c, r := costly(b, kind, 500)
			for b.Loop() {
				c.HeaderRule(r)
			}
		})
	}
}

// TestRepoServices: the service that git asks for decides, and no second one beside it.
func TestRepoServices(t *testing.T) {
	t.Parallel()
	spec := mustSpec(t, `{"mode": "allow-all", "repos": [{"name": "acme/web", "access": "read"}, {"name": "acme/tools", "access": "push"}]}`)
	c, err := Compile(spec, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	host, _ := name.Parse("github.com")
	for target, want := range map[[2]string]Verdict{
		{"/acme/web/info/refs", "service=git-upload-pack"}:                                    Allow,
		{"/acme/web.git/info/refs", "service=git-upload-pack"}:                                Allow,
		{"/acme/web.git/info/refs", "service=git-receive-pack"}:                               Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack;service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&Service=git-receive-pack"}:       Deny,
		{"/acme/web.git/info/refs", "service=git-upload-pack&service%5B%5D=git-receive-pack"}: Deny,
		{"/acme/web.git/info/refs", ""}:                                                       Deny,
		{"/acme/tools.git/info/refs", "service=git-receive-pack"}:                             Allow,
		{"/acme/tools%2Egit/info/refs", "service=git-receive-pack"}:                           Deny,
		{"/acme/tools.git/info/refs/", "service=git-receive-pack"}:                            Deny,
	} {
		r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: target[0], Query: target[1]}
		if d := c.Decide(r); d.Verdict != want {
			t.Errorf("%v: %+v, want %s", target, d, want)
		}
	}
}

// readings returns the interpretations of a path by servers: unchanged, decoded once, cleaned by net/url and path.Clean, and with
// backslashes replaced and slashes merged as well.
func readings(t *testing.T, p string) []string {
	t.Helper()
	u, err := url.ParseRequestURI("http://a.test" + p)
	if err != nil || u.RawQuery != "" {
		t.Fatalf("%q passes, and net/url says %v", p, err)
	}
	clean := path.Clean(u.Path)
	if strings.HasSuffix(u.Path, "/") && clean != "/" {
		clean += "/"
	}
	once, err := url.PathUnescape(p)
	if err != nil {
		t.Fatalf("%q: %v", p, err)
	}
	lenient := strings.ReplaceAll(once, `\`, "/")
	for strings.Contains(lenient, "//") {
		lenient = strings.ReplaceAll(lenient, "//", "/")
	}
	lenient, _, _ = strings.Cut(lenient, ";")
	if twice, err := url.PathUnescape(once); err != nil || twice != once {
		t.Fatalf("%q: a server that decodes twice reads %q", p, twice)
	}
	return []string{clean, once, lenient}
}

// FuzzJudgedPaths: what passes is read the same way by every server that decodes, and a request that the rules allow is
// allowed by them in every reading.
func FuzzJudgedPaths(f *testing.F) {
	for _, s := range []string{"/", "/admin", "/admin/x", "/a%20b", "/%7E", "/x/../admin", "/%61dmin", "/admin%2f", "/admin;x", "//admin", "/pub/%2e%2e/admin", "/caf%C3%A9", "/%EF%BC%8Fadmin", "/me%40x"} {
		f.Add(s, "/admin", "/pub/")
	}
	host, _ := name.Parse("a.test")
	f.Fuzz(func(t *testing.T, p, denied, allowed string) {
		c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{
			{Hosts: []string{"a.test"}, Paths: []string{denied}, Action: "deny"},
			{Hosts: []string{"a.test"}, Paths: []string{allowed + "*"}, Action: "allow"},
			{Hosts: []string{"a.test"}, Methods: []string{"POST"}, Action: "deny"},
		}}, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
		if err != nil || p == "*" || p == "" {
			return
		}
		for _, method := range []string{"GET", "POST"} {
			r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: method, Path: p}
			d := c.Decide(r)
			if d.Reason == name.ReasonAmbiguousPath {
				continue
			}
			read := readings(t, p)
			for _, s := range read[1:] {
				if s != read[0] {
					t.Fatalf("%q passes and is read as %q", p, read)
				}
			}
			if !utf8.ValidString(read[0]) {
				t.Fatalf("%q passes and is read as %q", p, read)
			}
			if !d.Allowed() {
				continue
			}
			for _, s := range []string{p, read[0]} {
				if s == denied || method == "POST" && !strings.HasPrefix(s, allowed) && !strings.HasPrefix(s, unescaped(allowed)) {
					t.Fatalf("%s %q is allowed, and a server reads %q (denied %q, allowed below %q)", method, p, s, denied, allowed)
				}
			}
		}
	})
}

func unescaped(s string) string {
	out, err := url.PathUnescape(s)
	if err != nil {
		return s
	}
	return out
}
