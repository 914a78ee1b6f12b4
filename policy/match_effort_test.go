package policy

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

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

// costly are requests that take long to compare with costly rules: n repeats what the rules look at.
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
