package match

import (
	"fmt"
	"strings"
	"testing"
)

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
		if fitOf(m, request) != Unfit {
			t.Errorf("%s fits %q", doc, request)
		}
		needs := m.Needs()
		fields := &Fields{Needs: &needs}
		method, target, _ := strings.Cut(request, " ")
		target, _, _ = strings.Cut(target, "\n")
		path, query, _ := strings.Cut(target, "?")
		if strings.Contains(request, "X-A") {
			fields.List = []Field{{"X-A", "c"}}
		}
		j := NewRequest(method, path, query, fields, nil)
		j.effort.left = 1
		if f := m.Fit(&j); f != Unsure {
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
		var query strings.Builder
		for i := range n {
			fmt.Fprintf(&query, "&x%03d", i)
		}
		j := NewRequest("", "", query.String(), nil, nil)
		if f := m.Fit(&j); f != Fits {
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
	j := NewRequest("", "", "a&b", nil, nil)
	if j.effort.left = 2*splitSteps*3 + nameSteps; m.Fit(&j) != Unsure {
		t.Error("a name that could not be remembered leaves the fit sure")
	}
}
