package exchange

import (
	"testing"

	"boxgate/policy"
	"boxgate/rule"
)

// TestLiteralsDoNotAllocate: requests share the header fields of a rule without sources.
func TestLiteralsDoNotAllocate(t *testing.T) {
	rules, err := policy.ParseHeaders(map[string]map[string]string{"a.test": {"A": "1", "B": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Core: &Core{}}
	does := rule.Requests(rules[0].Effects)
	r := Decision{header: policy.HeaderRule{Request: &does}}
	if n := testing.AllocsPerRun(100, func() { _ = r.setHeaders(t.Context(), s) }); n != 0 || len(r.Set) != 2 {
		t.Errorf("%v allocations, %d fields", n, len(r.Set))
	}
}
