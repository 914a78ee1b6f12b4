package policy

import (
	"strings"
	"testing"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// TestAlternatives: of the most specific pattern the first alternative that surely covers the request applies alone, one
// that denies applies wherever it may, and a request of which one cannot be sure is refused rather than given the next.
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
		if len(rule.Headers) > 0 {
			got += rule.Headers[len(rule.Headers)-1].Value.Reveal()
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

// TestRulesThatComeLater: a request whose headers nobody has kept is cut by a new rule that may deny it, and by no other.
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

// TestRulesAllocateNothing: requests of hosts whose rules do not look at them, and those of rules that look at the path
// alone, are judged without an allocation.
func TestRulesAllocateNothing(t *testing.T) {
	rules := mustRules(t, `{"a.test": {"X-Key": "k"}, "b.test": [{"match": {"path": {"prefix": "/v1/"}}, "headers": {"X-Key": "k"}}]}`)
	c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"b.test"}, Paths: []string{"/admin*"}, Action: "deny"}}}, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"a.test", "b.test"} {
		hostName, _ := name.Parse(host)
		r := Request{Stage: StageHTTP, Name: hostName, Port: 443, Protocol: TCP, Method: "GET", Path: "/v1/models", Query: "a=b"}
		if n := testing.AllocsPerRun(100, func() {
			if rt := c.Route(r, Evidence{Opening: OpeningSecure}); rt.Action != Forward || c.Needs(hostName, 443) != nil {
				t.Fatal("refused")
			}
			if rule, _ := c.HeaderRule(r); len(rule.Headers) != 1 {
				t.Fatal("no rule")
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", host, n)
		}
	}
}
