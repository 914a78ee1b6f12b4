package pages

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy/authority"
)

// TestDurations: seconds are shown in the largest unit that fits, and the durations of an answer contain the one that the box asks for.
func TestDurations(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]string{1: "1 second", 90: "90 seconds", 3600: "1 hour", 5400: "90 minutes", 7 * 24 * 3600: "7 days"} {
		if got := duration(seconds); got != want {
			t.Errorf("%d: %q", seconds, got)
		}
	}
	selected := func(asked int64, f Form) string {
		text := ""
		for _, c := range lasts(request{ExpiresIn: asked}, f) {
			if c.Selected {
				text += c.Text
			}
		}
		return text
	}
	for _, tt := range []struct {
		asked int64
		form  Form
		want  string
	}{
		{0, Form{}, "1 hour"},
		{600, Form{}, "10 minutes (as the box asks)"},
		{30 * 24 * 3600, Form{}, "1 hour"}, // more than an hour is the decision of the person
		{7200, Form{Values: map[string]string{"expires_in": "28800"}}, "8 hours"},
	} {
		if got := selected(tt.asked, tt.form); got != tt.want {
			t.Errorf("%d: %q, want %q", tt.asked, got, tt.want)
		}
	}
}

// TestStamps: both forms of times are read, and 0 and an empty text are no time.
func TestStamps(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		`0`: {}, `""`: {}, `1700000000`: time.Unix(1700000000, 0), `"2026-11-01T12:00:00Z"`: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC),
	} {
		var s stamp
		if err := json.Unmarshal([]byte(text), &s); err != nil || !s.Equal(want) {
			t.Errorf("%s: %v %v", text, s, err)
		}
	}
	var s stamp
	if json.Unmarshal([]byte(`"noon"`), &s) == nil || json.Unmarshal([]byte(`{}`), &s) == nil {
		t.Error("a text that is no time is one")
	}
}

// TestNarrow: only exact names on certain ports, without credentials, need no typed name.
func TestNarrow(t *testing.T) {
	t.Parallel()
	port := []uint16{443}
	for _, tt := range []struct {
		line authority.Line
		want bool
	}{
		{authority.Line{Kind: authority.KindName, Name: "a.example", Ports: port}, true},
		{authority.Line{Kind: authority.KindQuery, Name: "a.example"}, true},
		{authority.Line{Kind: authority.KindName, Name: "a.example"}, false},
		{authority.Line{Kind: authority.KindName, Name: "*.example", Ports: port}, false},
		{authority.Line{Kind: authority.KindName, Name: "a.example", Ports: port, Wide: true}, false},
		{authority.Line{Kind: authority.KindName, Name: "a.example", Ports: port, Headers: []string{"a.example"}}, false},
		{authority.Line{Kind: authority.KindAddress, Prefix: "192.0.2.1/32", Ports: port}, false},
		{authority.Line{Kind: authority.KindRequest, Hosts: []string{"a.example"}}, false},
	} {
		if got := isNarrow(tt.line); got != tt.want {
			t.Errorf("%+v: %v", tt.line, got)
		}
	}
}

// visitTo returns a visit of a path.
func visitTo(path string) *Visit {
	return &Visit{R: httptest.NewRequest(http.MethodGet, path, nil)}
}

// TestPaged: each row of a list is on one page, also at the bounds of pages.
func TestPaged(t *testing.T) {
	t.Parallel()
	for count := range 3*pageSize + 2 {
		list := make([]int, count)
		for i := range list {
			list[i] = i
		}
		met, path := 0, "/ui/x?q=a%26b"
		for path != "" {
			rows, pager := paged(visitTo(path), list)
			for _, row := range rows {
				if row != met {
					t.Fatalf("%d rows: %d at %s, want %d", count, row, path, met)
				}
				met++
			}
			if path = pager.Next; path != "" && !strings.Contains(path, "q=a%26b") {
				t.Fatalf("%s lost the filter", path)
			}
		}
		if met != count {
			t.Fatalf("%d of %d rows", met, count)
		}
	}
}

// FuzzMembersOf: whatever stands in the editor, the members that reach the API are JSON without the ones that the API adds.
func FuzzMembersOf(f *testing.F) {
	for _, s := range []string{"", "null", `{}`, `{"version":1,"mode":"allow-all"}`, `"deny-all"`, `[1]`, `{"a":`, "{\"\u202e\":1}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		members, err := membersOf(text)
		if (err == nil) != (members != nil) {
			t.Fatal(members, err)
		}
		if _, found := members["version"]; found {
			t.Fatal("the version of the text is sent")
		}
		if data, err := json.Marshal(members); err != nil || !json.Valid(data) {
			t.Fatal(err)
		}
	})
}

// FuzzRules: header rules of any form are shown without a panic, one row for each alternative at most.
func FuzzRules(f *testing.F) {
	f.Add(`{"rules":{"a.example":{"headers":[{"name":"X","secret":"s"}],"match":{"methods":["GET"]},"scrub":true}},"version":3}`)
	f.Add(`{"rules":{"a.example":{"alternatives":[{"headers":[]},{"deny":true}]}}}`)
	f.Add(`{"rules":{"a.example":{"alternatives":"x","headers":{}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var h headerRules
		if json.Unmarshal([]byte(text), &h) != nil {
			return
		}
		if rows := h.list(); len(rows) < len(h.Rules) {
			t.Fatalf("%d rows of %d rules", len(rows), len(h.Rules))
		}
	})
}

// TestReportsAreBounded: of the reports that browsers are slow to receive, others than the operator have two in memory, one for each
// key, and the operator does not wait for them.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	r := newReports()
	auditor := func(key string) api.Caller { return api.Caller{Key: key, Role: api.RoleAuditor} }
	first, err := r.admit(t.Context(), auditor("a"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.admit(t.Context(), auditor("b"))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, key := range []string{"a", "c"} {
		if _, err := r.admit(over, auditor(key)); err == nil {
			t.Error("a third report, of", key)
		}
	}
	operator, err := r.admit(t.Context(), api.Caller{Key: api.OperatorKey, Role: api.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	operator()
	first()
	second()
	third, err := r.admit(t.Context(), auditor("c"))
	if err != nil {
		t.Fatal("after the others were sent:", err)
	}
	third()
}
