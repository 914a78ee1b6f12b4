package match

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"boxgate/policy/document"

	"github.com/google/go-cmp/cmp"
)

// parsedMatch returns a match in JSON, ready to compare.
func parsedMatch(t testing.TB, doc string) (Match, *Conditions) {
	t.Helper()
	var ps document.Problems
	v, ok := document.Parse([]byte(doc), &ps)
	if !ok {
		t.Fatal(ps.Err())
	}
	m := Read("", v, &ps)
	out := Compile("", *m, &ps)
	if err := ps.Err(); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return *m, out
}

// fitOf compares "METHOD target" with the fields that follow, one "name: value" each.
func fitOf(m *Conditions, request string) Fit {
	lines := strings.Split(request, "\n")
	method, target, _ := strings.Cut(lines[0], " ")
	needs := m.Needs()
	fields := &Fields{Needs: &needs}
	path, query, _ := strings.Cut(target, "?")
	for _, line := range lines[1:] {
		if name, value, _ := strings.Cut(line, ": "); needs.Wants(name) {
			fields.List = append(fields.List, Field{name, value})
		}
	}
	j := NewRequest(method, path, query, fields, nil)
	return m.Fit(&j)
}

// TestFit: what every server reads as meant fits; what none does, does not; and whatever they may read in different ways
// is unsure.
func TestFit(t *testing.T) {
	t.Parallel()
	for doc, requests := range map[string]map[string]Fit{
		`{"methods": ["POST"]}`: {"POST /": Fits, "post /": Unsure, "GET /": Unfit},
		`{"path": {"exact": "/v1/chat"}}`: {
			"GET /v1/chat": Fits, "GET /v1/chat?x=1": Fits, "GET /v1/chat/": Unfit, "GET /V1/Chat": Unsure, "GET /v1/%63hat": Unsure, "GET /": Unfit},
		`{"path": {"prefix": "/a%20b/"}}`: {"GET /a%20b/c": Fits, "GET /a+b/c": Unfit},
		`{"path": {"regex": "^/repos/[^/]+$"}}`: {
			"GET /repos/x": Fits, "GET /repos/x/y": Unfit, "GET /Repos/x": Unsure, "GET /repos/" + strings.Repeat("x", maxMatchedText): Unsure, "GET /repos/%FF": Unsure},
		`{"query": {"model": {"exact": "x"}}}`: {
			"GET /?model=x": Fits, "GET /?a=b&model=x&c": Fits, "GET /?model=y": Unfit, "GET /": Unfit, "GET /?": Unfit, "GET /?mode=x": Unfit,
			"GET /?model=x&model=x": Unsure, "GET /?model=y&model=x": Unsure, "GET /?model=y&model=z": Unfit, "GET /?model=x&Model=y": Unsure,
			"GET /?Model=x": Unsure, "GET /?mod%65l=x": Fits, "GET /?mod%2565l=x": Unsure, "GET /?model=%78": Fits, "GET /?model=%2578": Unsure,
			"GET /?model[]=x": Unsure, "GET /?model%5B0%5D=x": Unsure, "GET /?+model=x": Unsure, "GET /?model=x%00y": Unsure,
			"GET /??model=x": Unsure, "GET /?%00model=x": Unsure, "GET /?a&%20%00model=x": Unsure, "GET /?mod%u0065l=x": Unsure, "GET /?model=%u0078": Unsure,
			"GET /?mod%25u0065l=x": Unsure, "GET /?mod%uFF45l=x": Unsure, "GET /?%25uff4dodel=x": Unsure, "GET /?a%u4e2d=x": Unsure,
			"GET /?a=%u4e2d": Unfit, "GET /?model=%u4e2d": Unsure, "GET /?model=%25u4e2d": Unsure, "GET /?model=%uzzzz": Unfit,
			"GET /?mod%u0025l=x": Unfit, "GET /?model=%u00": Unfit, "GET /??a=x": Unfit,
			"GET /?a=1;model=x": Unsure, "GET /?model=x;b=2": Unsure, "GET /?model=y;b=2": Unfit, "GET /?model=X": Unsure,
			"GET /?" + strings.Repeat("a&", maxQueryPairs) + "model=x": Unsure},
		`{"query": {"q": {"exact": "a b"}}}`:       {"GET /?q=a%20b": Fits, "GET /?q=a+b": Unsure, "GET /?q=a%2Bb": Unfit},
		`{"query": {"q": {"exact": "a+b"}}}`:       {"GET /?q=a%2Bb": Fits, "GET /?q=a+b": Unsure},
		`{"query": {"user.name": {"exact": "x"}}}`: {"GET /?user.name=x": Fits, "GET /?user_name=x": Unsure},
		`{"query": {"a": {"prefix": ""}, "b": {"regex": "^[0-9]+$"}}}`: {
			"GET /?a&b=1": Fits, "GET /?a=&b=1": Fits, "GET /?b=1": Unfit, "GET /?a&b=x": Unfit, "GET /?a&b=%31": Fits},
		`{"query": [{"key": {"regex": "^x_"}, "value": {"exact": "1"}}]}`: {
			"GET /?x_a=1": Fits, "GET /?x_a=1&x_b=2": Fits, "GET /?x_a=1&x_a=2": Unsure, "GET /?y=1": Unfit, "GET /?X_a=1": Unsure},
		`{"query": [{"key": {"exact": "a"}}]}`: {"GET /?a=anything": Fits, "GET /?a&a": Unsure, "GET /?b": Unfit},
		`{"headers": {"X-Team": {"regex": "^blue$"}}}`: {
			"GET /\nx-team: blue": Fits, "GET /\nX-TEAM: blue": Fits, "GET /\nX-Team: Blue": Unsure, "GET /\nX-Team: red": Unfit, "GET /": Unfit,
			"GET /\nX_Team: blue": Unsure, "GET /\nX-Team: blue\nX_Team: red": Unsure, "GET /\nX-Team: red\nX-Team: blue": Unsure,
			"GET /\nX-Team: red, blue": Unsure, "GET /\nX-Team: red, green": Unfit},
		`{"headers": {"X-Team": {"exact": "a"}, "X-Other": {"prefix": ""}}}`: {"GET /\nX-Team: a\nX-Other: b": Fits, "GET /\nX-Team: a": Unfit},
		`{"headers": [{"key": {"prefix": "X-My-"}, "value": {"exact": "1"}}]}`: {
			"GET /\nx-my-a: 1": Fits, "GET /\nx-my-a: 1\nX-MY-A: 2": Unsure, "GET /\nx-my-a: 2": Unfit},
	} {
		_, m := parsedMatch(t, doc)
		for request, want := range requests {
			if got := fitOf(m, request); got != want {
				t.Errorf("%s: %.80q: %d, want %d", doc, request, got, want)
			}
		}
	}
	_, m := parsedMatch(t, `{"headers": {"X-Team": {"exact": "a"}}}`)
	if j := NewRequest("", "", "", nil, nil); m.Fit(&j) != Unsure {
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
		Compile("", *Read("", v, &ps), &ps)
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
		m := Match{Query: Pairs{[]Pair{{Key: *Exact(name), Value: Exact(value)}}}}
		var ps document.Problems
		matcher := Compile("", m, &ps)
		if ps.Err() != nil || strings.Contains(query, "#") {
			return
		}
		got := matcher.query[0].fitQuery(query, &effort{fullEffort})
		read, err := url.ParseQuery(query)
		if got == Fits {
			if values := read[name]; err == nil && (len(values) != 1 || values[0] != value) {
				t.Fatalf("%q surely has %q=%q, and net/url reads %q", query, name, value, values)
			}
		}
		split, _ := url.ParseQuery(strings.ReplaceAll(query, ";", "&"))
		for _, values := range []url.Values{read, split} {
			for key, list := range values {
				for _, v := range list {
					if strings.EqualFold(key, name) && v == value && got == Unfit {
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
		m := Read("", v, &ps)
		matcher := Compile("", *m, &ps)
		if ps.Err() != nil {
			checkProblems(t, ps.Err())
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
		same := Compile("", again, &ps)
		if ps.Err() != nil {
			t.Fatalf("%s: %v", stored, ps.Err())
		}
		request := "GET " + target + "\n" + header + ": " + target
		if a, b := fitOf(matcher, request), fitOf(same, request); a != b {
			t.Fatalf("%s: %d, and once stored %d", data, a, b)
		}
	})
}

func checkProblems(t *testing.T, err error) {
	t.Helper()
	invalid, ok := errors.AsType[*document.InvalidError](err)
	if !ok || len(invalid.Problems) == 0 {
		t.Fatalf("want an *InvalidError with problems, got %v", err)
	}
	for _, p := range invalid.Problems {
		if p.Message == "" || p.Pointer != "" && p.Pointer[0] != '/' {
			t.Fatalf("bad problem %+v", p)
		}
	}
}
