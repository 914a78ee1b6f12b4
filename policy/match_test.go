package policy

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/name"

	"github.com/google/go-cmp/cmp"
)

// parsedMatch returns a match in JSON, ready to compare.
func parsedMatch(t testing.TB, doc string) (Match, *requestMatcher) {
	t.Helper()
	var ps document.Problems
	v, ok := document.Parse([]byte(doc), &ps)
	if !ok {
		t.Fatal(ps.Err())
	}
	m := readMatch("", v, &ps)
	out := checkMatch("", *m, &ps)
	if err := ps.Err(); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return *m, out
}

// fitOf compares "METHOD target" with the fields that follow, one "name: value" each.
func fitOf(m *requestMatcher, request string) fit {
	lines := strings.Split(request, "\n")
	method, target, _ := strings.Cut(lines[0], " ")
	needs := m.needs()
	r := Request{Method: method, Fields: &Fields{Needs: &needs}}
	r.Path, r.Query, _ = strings.Cut(target, "?")
	for _, line := range lines[1:] {
		if name, value, _ := strings.Cut(line, ": "); needs.Wants(name) {
			r.Fields.List = append(r.Fields.List, Field{name, value})
		}
	}
	j := judge(&r)
	return m.fit(&j)
}

// TestFit: what every server reads as meant fits; what none does, does not; and whatever they may read in different ways
// is unsure.
func TestFit(t *testing.T) {
	t.Parallel()
	for doc, requests := range map[string]map[string]fit{
		`{"methods": ["POST"]}`: {"POST /": fits, "post /": unsure, "GET /": unfit},
		`{"path": {"exact": "/v1/chat"}}`: {
			"GET /v1/chat": fits, "GET /v1/chat?x=1": fits, "GET /v1/chat/": unfit, "GET /V1/Chat": unsure, "GET /v1/%63hat": unsure, "GET /": unfit},
		`{"path": {"prefix": "/a%20b/"}}`: {"GET /a%20b/c": fits, "GET /a+b/c": unfit},
		`{"path": {"regex": "^/repos/[^/]+$"}}`: {
			"GET /repos/x": fits, "GET /repos/x/y": unfit, "GET /Repos/x": unsure, "GET /repos/" + strings.Repeat("x", maxMatchedText): unsure, "GET /repos/%FF": unsure},
		`{"query": {"model": {"exact": "x"}}}`: {
			"GET /?model=x": fits, "GET /?a=b&model=x&c": fits, "GET /?model=y": unfit, "GET /": unfit, "GET /?": unfit, "GET /?mode=x": unfit,
			"GET /?model=x&model=x": unsure, "GET /?model=y&model=x": unsure, "GET /?model=y&model=z": unfit, "GET /?model=x&Model=y": unsure,
			"GET /?Model=x": unsure, "GET /?mod%65l=x": fits, "GET /?mod%2565l=x": unsure, "GET /?model=%78": fits, "GET /?model=%2578": unsure,
			"GET /?model[]=x": unsure, "GET /?model%5B0%5D=x": unsure, "GET /?+model=x": unsure, "GET /?model=x%00y": unsure,
			"GET /??model=x": unsure, "GET /?%00model=x": unsure, "GET /?a&%20%00model=x": unsure, "GET /?mod%u0065l=x": unsure, "GET /?model=%u0078": unsure,
			"GET /?mod%25u0065l=x": unsure, "GET /?mod%uFF45l=x": unsure, "GET /?%25uff4dodel=x": unsure, "GET /?a%u4e2d=x": unsure,
			"GET /?a=%u4e2d": unfit, "GET /?model=%u4e2d": unsure, "GET /?model=%25u4e2d": unsure, "GET /?model=%uzzzz": unfit,
			"GET /?mod%u0025l=x": unfit, "GET /?model=%u00": unfit, "GET /??a=x": unfit,
			"GET /?a=1;model=x": unsure, "GET /?model=x;b=2": unsure, "GET /?model=y;b=2": unfit, "GET /?model=X": unsure,
			"GET /?" + strings.Repeat("a&", maxQueryPairs) + "model=x": unsure},
		`{"query": {"q": {"exact": "a b"}}}`:       {"GET /?q=a%20b": fits, "GET /?q=a+b": unsure, "GET /?q=a%2Bb": unfit},
		`{"query": {"q": {"exact": "a+b"}}}`:       {"GET /?q=a%2Bb": fits, "GET /?q=a+b": unsure},
		`{"query": {"user.name": {"exact": "x"}}}`: {"GET /?user.name=x": fits, "GET /?user_name=x": unsure},
		`{"query": {"a": {"prefix": ""}, "b": {"regex": "^[0-9]+$"}}}`: {
			"GET /?a&b=1": fits, "GET /?a=&b=1": fits, "GET /?b=1": unfit, "GET /?a&b=x": unfit, "GET /?a&b=%31": fits},
		`{"query": [{"key": {"regex": "^x_"}, "value": {"exact": "1"}}]}`: {
			"GET /?x_a=1": fits, "GET /?x_a=1&x_b=2": fits, "GET /?x_a=1&x_a=2": unsure, "GET /?y=1": unfit, "GET /?X_a=1": unsure},
		`{"query": [{"key": {"exact": "a"}}]}`: {"GET /?a=anything": fits, "GET /?a&a": unsure, "GET /?b": unfit},
		`{"headers": {"X-Team": {"regex": "^blue$"}}}`: {
			"GET /\nx-team: blue": fits, "GET /\nX-TEAM: blue": fits, "GET /\nX-Team: Blue": unsure, "GET /\nX-Team: red": unfit, "GET /": unfit,
			"GET /\nX_Team: blue": unsure, "GET /\nX-Team: blue\nX_Team: red": unsure, "GET /\nX-Team: red\nX-Team: blue": unsure,
			"GET /\nX-Team: red, blue": unsure, "GET /\nX-Team: red, green": unfit},
		`{"headers": {"X-Team": {"exact": "a"}, "X-Other": {"prefix": ""}}}`: {"GET /\nX-Team: a\nX-Other: b": fits, "GET /\nX-Team: a": unfit},
		`{"headers": [{"key": {"prefix": "X-My-"}, "value": {"exact": "1"}}]}`: {
			"GET /\nx-my-a: 1": fits, "GET /\nx-my-a: 1\nX-MY-A: 2": unsure, "GET /\nx-my-a: 2": unfit},
	} {
		_, m := parsedMatch(t, doc)
		for request, want := range requests {
			if got := fitOf(m, request); got != want {
				t.Errorf("%s: %.80q: %d, want %d", doc, request, got, want)
			}
		}
	}
	_, m := parsedMatch(t, `{"headers": {"X-Team": {"exact": "a"}}}`)
	if j := judge(&Request{}); m.fit(&j) != unsure {
		t.Error("a header of which nothing is known does not leave the rule unsure")
	}
}

// TestMatchJSON: a match comes back from JSON as it was, as the store keeps it and the API shows it.
func TestMatchJSON(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		`{"methods":["GET"],"path":{"prefix":"/v1/"},"query":{"a":{"exact":""},"b":{"regex":"x"}},"headers":{"X-A":{"prefix":"1"}}}`,
		`{"query":[{"key":{"regex":"^a"}},{"key":{"exact":"b"},"value":{"exact":"1"}}]}`,
		`{"headers":[{"key":{"exact":"a"},"value":{"prefix":"1"}},{"key":{"exact":"a"},"value":{"regex":"2$"}}]}`,
	} {
		m, _ := parsedMatch(t, doc)
		data, err := json.Marshal(m)
		if err != nil || string(data) != doc {
			t.Errorf("%s became %s, %v", doc, data, err)
		}
		var again Match
		if err := json.Unmarshal(data, &again); err != nil || !cmp.Equal(m, again) {
			t.Errorf("%s came back as %v, %v", doc, again, err)
		}
	}
	for _, doc := range []string{`{"query":1}`, `{"query":{"a":{"exakt":"x"}}}`, `{"query":[{"name":"x"}]}`} {
		if json.Unmarshal([]byte(doc), new(Match)) == nil {
			t.Errorf("%s is read", doc)
		}
	}
}

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
	c, err := Compile(Spec{Mode: ModeAllowAll}, rules, name.NewProtected(nil, nil), 9)
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
		r.Fields = &Fields{Needs: c.Needs(host, 443)}
		lines := strings.Split(request, "\n")
		method, target, _ := strings.Cut(lines[0], " ")
		r.Method = method
		r.Path, r.Query, _ = strings.Cut(target, "?")
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			r.Fields.List = append(r.Fields.List, Field{name, value})
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
		c, err := Compile(Spec{Mode: ModeAllowAll}, mustRules(t, doc), name.NewProtected(nil, nil), 1)
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
	spec, err := ParseSpec([]byte(`{"mode": "allow-all", "rules": [
		{"hosts": ["a.test"], "match": {"query": {"admin": {"prefix": ""}}}, "action": "deny"},
		{"hosts": ["a.test"], "methods": ["GET"], "match": {"path": {"regex": "^/v[12]/"}, "query": {"team": {"exact": "blue"}}}, "action": "allow"},
		{"hosts": ["a.test"], "action": "deny"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(spec, nil, name.NewProtected(nil, nil), 1)
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

// TestMatchProblems: each mistake has its pointer, and expressions that cost too much are refused.
func TestMatchProblems(t *testing.T) {
	t.Parallel()
	for doc, at := range map[string]string{
		`{}`:                   "",
		`{"methods": []}`:      "/methods",
		`{"methods": ["get"]}`: "/methods/0",
		`{"path": {}}`:         "/path",
		`{"path": {"exact": "/a", "prefix": "/b"}}`: "/path",
		`{"path": {"prefix": "/a b"}}`:              "/path/prefix",
		`{"path": {"exact": "v1"}}`:                 "/path/exact",
		`{"path": {"prefix": "/a/../b"}}`:           "/path/prefix",
		`{"path": {"prefix": "/a?b"}}`:              "/path/prefix",
		`{"path": {"regex": "("}}`:                  "/path/regex",
		`{"path": {"regex": "a)(?:b"}}`:             "/path/regex",
		`{"path": {"regex": "(a{30}){30}"}}`:        "/path/regex",
		`{"path": {"regex": ""}}`:                   "/path/regex",
		`{"path": {"startsWith": "/a"}}`:            "/path/startsWith",
		`{"query": {"": {"exact": "x"}}}`:           "/query/",
		`{"query": {"a": "x"}}`:                     "/query/a",
		`{"query": [{"value": {"exact": "x"}}]}`:    "/query/0/key",
		`{"headers": {"Host": {"exact": "x"}}}`:     "/headers/Host",
		`{"headers": {"a b": {"exact": "x"}}}`:      "/headers/a b",
		`{"headers": {"a": {"exact": "` + strings.Repeat("x", maxMatcherText+1) + `"}}}`: "/headers/a",
		`{"header": {}}`: "/header",
	} {
		var ps document.Problems
		v, ok := document.Parse([]byte(doc), &ps)
		if !ok {
			t.Fatal(doc)
		}
		checkMatch("", *readMatch("", v, &ps), &ps)
		invalid, ok := errors.AsType[*document.InvalidError](ps.Err())
		if !ok || invalid.Problems[0].Pointer != at {
			t.Errorf("%.80s: %v, want a problem at %q", doc, ps.Err(), at)
		}
	}
}

// FuzzFitQuery: a rule that sends something applies only to requests that a server built on net/url reads as meant, first
// and last value alike; one that denies applies to all of those, with ";" as a separator and names in any case as well.
func FuzzFitQuery(f *testing.F) {
	for _, s := range []string{"model=x", "a=1&model=x", "model=y&model=x", "mod%65l=x", "a=1;model=x", "model=%78", "MODEL=x", "model=x+y", "model[]=x", "%=&model=x"} {
		f.Add(s, "model", "x")
	}
	f.Fuzz(func(t *testing.T, query, name, value string) {
		m := Match{Query: MatchPairs{[]MatchPair{{Key: *MatchExact(name), Value: MatchExact(value)}}}}
		var ps document.Problems
		matcher := checkMatch("", m, &ps)
		if ps.Err() != nil || strings.Contains(query, "#") {
			return
		}
		got := matcher.query[0].fitQuery(query, &effort{fullEffort})
		read, err := url.ParseQuery(query)
		if got == fits {
			if values := read[name]; err == nil && (len(values) != 1 || values[0] != value) {
				t.Fatalf("%q surely has %q=%q, and net/url reads %q", query, name, value, values)
			}
		}
		split, _ := url.ParseQuery(strings.ReplaceAll(query, ";", "&"))
		for _, values := range []url.Values{read, split} {
			for key, list := range values {
				for _, v := range list {
					if strings.EqualFold(key, name) && v == value && got == unfit {
						t.Fatalf("%q does not have %q=%q, and net/url reads %q", query, name, value, values)
					}
				}
			}
		}
	})
}

// FuzzMatch: whatever is accepted compiles, compares in bounded time, and comes back from JSON.
func FuzzMatch(f *testing.F) {
	f.Add([]byte(`{"methods":["GET"],"path":{"regex":"^/(a|b)*$"},"query":{"a":{"exact":"x"}},"headers":[{"key":{"prefix":"x-"}}]}`), "/a?a=x", "x-a")
	f.Fuzz(func(t *testing.T, data []byte, target, header string) {
		var ps document.Problems
		v, ok := document.Parse(data, &ps)
		if !ok {
			return
		}
		m := readMatch("", v, &ps)
		matcher := checkMatch("", *m, &ps)
		if ps.Err() != nil {
			checkInvalid(t, ps.Err())
			return
		}
		stored, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again Match
		if err := json.Unmarshal(stored, &again); err != nil {
			t.Fatalf("%s: %v", stored, err)
		}
		same := checkMatch("", again, &ps)
		if ps.Err() != nil {
			t.Fatalf("%s: %v", stored, ps.Err())
		}
		request := "GET " + target + "\n" + header + ": " + target
		if a, b := fitOf(matcher, request), fitOf(same, request); a != b {
			t.Fatalf("%s: %d, and once stored %d", data, a, b)
		}
	})
}

// TestRulesAllocateNothing: requests of hosts whose rules do not look at them, and those of rules that look at the path
// alone, are judged without an allocation.
func TestRulesAllocateNothing(t *testing.T) {
	rules := mustRules(t, `{"a.test": {"X-Key": "k"}, "b.test": [{"match": {"path": {"prefix": "/v1/"}}, "headers": {"X-Key": "k"}}]}`)
	c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []RequestRule{{Hosts: []string{"b.test"}, Paths: []string{"/admin*"}, Action: "deny"}}}, rules, name.NewProtected(nil, nil), 1)
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
