package policy

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/policy/name"
)

// manyRules are as many alternatives as a host may have, each with as many conditions of the kind as it may have.
func manyRules(t testing.TB, kind, matcher string) *Compiled {
	t.Helper()
	var pairs, rules []string
	for i := range maxMatchPairs {
		pairs = append(pairs, fmt.Sprintf(`{"key": {"regex": "^x-[a-z]+%d?"}, "value": %s}`, i, matcher))
	}
	for range maxAlternatives - 1 {
		rules = append(rules, `{"match": {"`+kind+`": [`+strings.Join(pairs, ",")+`]}, "headers": {"X-Key": "k"}}`)
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, mustRules(t, `{"a.test": [`+strings.Join(rules, ",")+`, {"headers": {"X-Key": "last"}}]}`), name.NewProtected(nil, nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// costly are requests that take long to compare with costly rules: n repeats what the rules look at.
func costly(t testing.TB, kind string, n int) (*Compiled, Request) {
	t.Helper()
	host, _ := name.Parse("a.test")
	r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: "/"}
	c := manyRules(t, kind, `{"regex": "(a|aa|aaa|[a-c]){1,20}(b|bb)*[^d]*d$"}`)
	r.Fields = &Fields{Needs: c.Needs(host, 443)}
	for range n {
		value := strings.Repeat("ab", 40)
		r.Query += "&x-a=" + value
		r.Fields.List = append(r.Fields.List, Field{"X-A", value})
	}
	return c, r
}

// TestMatchingIsBounded: a request that would take seconds to compare is refused, as one whose fit is unsure; an ordinary one
// with the same rules is not.
func TestMatchingIsBounded(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"headers", "query"} {
		c, r := costly(t, kind, 1)
		if rule, d := c.HeaderRule(r); d.Reason != "" || len(rule.Headers) != 1 || rule.Headers[0].Value.Reveal() != "last" {
			t.Errorf("%s: an ordinary request: %+v", kind, d)
		}
		if c, r = costly(t, kind, 500); r.Fields.List != nil {
			if _, d := c.HeaderRule(r); d.Reason != name.ReasonAmbiguousRequest {
				t.Errorf("%s: a costly request: %+v", kind, d)
			}
		}
	}
}

// TestEffortIsSpent: with nothing left, each way to compare is unsure of what it has not looked at.
func TestEffortIsSpent(t *testing.T) {
	t.Parallel()
	for doc, request := range map[string]string{
		`{"path": {"exact": "/a"}}`:               "GET /b",
		`{"path": {"prefix": "/a"}}`:              "GET /b",
		`{"path": {"regex": "^/a"}}`:              "GET /b",
		`{"query": {"a": {"exact": "b"}}}`:        "GET /?b=c",
		`{"headers": {"X-A": {"exact": "b"}}}`:    "GET /\nX-A: c",
		`{"headers": [{"key": {"regex": "^a"}}]}`: "GET /\nX-A: c",
	} {
		_, m := parsedMatch(t, doc)
		if fitOf(m, request) != unfit {
			t.Errorf("%s fits %q", doc, request)
		}
		needs := m.needs()
		r := Request{Fields: &Fields{Needs: &needs}}
		r.Method, r.Path, _ = strings.Cut(request, " ")
		r.Path, _, _ = strings.Cut(r.Path, "\n")
		r.Path, r.Query, _ = strings.Cut(r.Path, "?")
		if strings.Contains(request, "X-A") {
			r.Fields.List = []Field{{"X-A", "c"}}
		}
		j := judge(&r)
		j.effort.left = 1
		if f := m.fit(&j); f != unsure {
			t.Errorf("%s: %d without having looked", doc, f)
		}
	}
}

// TestNamesCostTheirNumber: of a matcher that many parameters are for, each costs steps, twice as many twice as much, and a
// request with the most parameters for the most matchers does not get through.
func TestNamesCostTheirNumber(t *testing.T) {
	t.Parallel()
	spent := func(key string, n int) int {
		_, m := parsedMatch(t, `{"query": [{"key": `+key+`}]}`)
		r := Request{}
		for i := range n {
			r.Query += fmt.Sprintf("&x%03d", i)
		}
		j := judge(&r)
		if f := m.fit(&j); f != fits {
			t.Errorf("%s of %d: %d", key, n, f)
		}
		return fullEffort - j.effort.left
	}
	for _, key := range []string{`{"prefix": ""}`, `{"prefix": "x"}`, `{"regex": "^x"}`} {
		few, many := spent(key, 128), spent(key, 256)
		if many-few < 128*nameSteps || many > 2*few+nameSteps {
			t.Errorf("%s: %d steps for 128 parameters, %d for 256", key, few, many)
		}
	}
	_, m := parsedMatch(t, `{"query": [{"key": {"prefix": ""}}]}`)
	j := judge(&Request{Query: "a&b"})
	if j.effort.left = 2*splitSteps*3 + nameSteps; m.fit(&j) != unsure {
		t.Error("a name that could not be remembered leaves the fit sure")
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
