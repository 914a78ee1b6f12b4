package match

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/policy/content"
	"boxgate/policy/document"
)

// rulesOf reads and compiles request rules.
func rulesOf(t testing.TB, doc string) ([]RequestRule, []CompiledRule, error) {
	t.Helper()
	var ps document.Problems
	v, ok := document.Parse([]byte(doc), &ps)
	if !ok {
		t.Fatal(ps.Err())
	}
	rules := ReadRules("", v, &ps)
	return rules, CompileRules("", rules, &ps), ps.Err()
}

// TestApplyToMessages: a rule that allows applies only if all messages certainly meet its condition, one that denies if any may.
func TestApplyToMessages(t *testing.T) {
	t.Parallel()
	call := func(tool string) content.Message { return content.Message{Method: content.CallTool, Tool: tool} }
	method := func(s string) content.Message { return content.Message{Method: s} }
	mcp := func(all ...content.Message) *content.Content { return &content.Content{Messages: all} }
	gql := func(all ...content.Operation) *content.Content { return &content.Content{Operations: all} }
	query := func(name string, fields ...string) content.Operation {
		return content.Operation{Type: "query", Name: name, Fields: fields}
	}
	for _, tt := range []struct {
		match       string
		content     *content.Content
		allow, deny bool // whether rules with the action apply
	}{
		{`{"mcp": {"methods": ["tools/list"]}}`, mcp(method("tools/list")), true, true},
		{`{"mcp": {"methods": ["tools/list"]}}`, mcp(method("Tools/list")), false, true},
		{`{"mcp": {"methods": ["tools/list"]}}`, mcp(method("tools/list2")), false, false},
		{`{"mcp": {"methods": ["tools/*"]}}`, mcp(method("tools/list"), call("x")), true, true},
		{`{"mcp": {"methods": ["tools/*"], "tools": ["a"]}}`, mcp(method("tools/list"), call("x")), false, true},
		{`{"mcp": {"methods": ["tools/call"], "tools": ["a"]}}`, mcp(call("x")), false, false},
		{`{"mcp": {"tools": ["a", "b*"]}}`, mcp(call("a"), call("bc")), true, true},
		{`{"mcp": {"tools": ["a"]}}`, mcp(call("a"), call("b")), false, true},
		{`{"mcp": {"tools": ["a"]}}`, mcp(content.Message{Session: true}), false, false},
		{`{"mcp": {"session": true}}`, mcp(content.Message{Session: true}, method("ping"), method("notifications/x")), true, true},
		{`{"mcp": {"session": true}}`, mcp(method("tools/list")), false, false},
		{`{"mcp": {"methods": ["*"]}}`, mcp(), false, false},
		{`{"graphql": {"fields": ["user", "repo*"]}}`, gql(query("", "user", "repos")), true, true},
		{`{"graphql": {"fields": ["user"]}}`, gql(query("", "user", "secrets")), false, true},
		{`{"graphql": {"fields": ["user"]}}`, gql(query("", "secrets")), false, false},
		{`{"graphql": {"fields": ["*"], "operations": ["mutation"]}}`, gql(query("", "user")), false, false},
		{`{"graphql": {"names": ["A"], "fields": ["user"]}}`, gql(query("A", "user")), true, true},
		{`{"graphql": {"names": ["A"]}}`, gql(query("", "user")), false, false},
		{`{"graphql": {"fields": ["user"]}}`, gql(query("", "user"), query("", "secrets")), false, true},
		{`{"graphql": {"fields": ["user"]}}`, gql(content.Operation{Persisted: "x"}), false, true},
		{`{"graphql": {"fields": ["user"]}}`, gql(), false, false},
	} {
		for action, want := range map[string]bool{"allow": tt.allow, "deny": tt.deny} {
			_, rules, err := rulesOf(t, `[{"hosts": ["a.test"], "paths": ["/*"], "match": `+tt.match+`, "action": "`+action+`"}]`)
			if err != nil {
				t.Fatal(err)
			}
			kind := rules[0].Reads()
			read := tt.content.Unreadable(kind, "")
			req := NewRequest("POST", "/", "", nil, read)
			if got := rules[0].Apply(&req); (got == Decides) != want || got != Decides && got != Passes {
				t.Errorf("%s %s: %d for %+v", action, tt.match, got, tt.content)
			}
			for outcome, c := range map[Outcome]*content.Content{Unread: nil, Unreadable: read.Unreadable(kind, "flawed")} {
				req := NewRequest("POST", "/", "", nil, c)
				if got := rules[0].Apply(&req); got != outcome {
					t.Errorf("%s %s: %d, want %d", action, tt.match, got, outcome)
				}
			}
			req = NewRequest("POST", "/", "", nil, read)
			if req.effort.left = 1; (rules[0].Apply(&req) == Decides) != (action == "deny" && len(tt.content.Messages)+len(tt.content.Operations) > 0) {
				t.Errorf("%s %s: sure without having compared", action, tt.match)
			}
		}
	}
}

// TestPersistedQueries: an allowing rule covers the listed ones only, in addition to texts if it has conditions on these.
func TestPersistedQueries(t *testing.T) {
	t.Parallel()
	for graphql, want := range map[string]string{
		`{"persisted": ["aB", "c*"]}`:               "persisted",
		`{"persisted": ["Ab"], "fields": ["user"]}`: "persisted text",
		`{"fields": ["user"]}`:                      "text",
	} {
		_, rules, err := rulesOf(t, `[{"hosts": ["a.test"], "match": {"graphql": `+graphql+`}, "action": "allow"}]`)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range []content.Operation{{Persisted: "ab"}, {Persisted: "cd"}, {Type: "query", Fields: []string{"user"}}} {
			c := (&content.Content{Operations: []content.Operation{o}}).Unreadable(content.GraphQL, "")
			if req := NewRequest("POST", "/", "", nil, c); rules[0].Apply(&req) == Decides {
				got = append(got, map[string]string{"ab": "persisted", "cd": "other", "": "text"}[o.Persisted])
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s covers %q", graphql, got)
		}
	}
}

// TestMistakesInConditionsOnMessages: each has a pointer and a correction.
func TestMistakesInConditionsOnMessages(t *testing.T) {
	t.Parallel()
	for match, want := range map[string]string{
		`{"mcp": {}}`:                                                     "/0/match/mcp: is empty",
		`{"mcp": {"tools": []}}`:                                          "/0/match/mcp/tools: is empty",
		`{"mcp": {"tools": ["a*b"]}}`:                                     "/0/match/mcp/tools/0: ",
		`{"mcp": {"methods": ["", " a"]}}`:                                "/0/match/mcp/methods/1: ",
		`{"mcp": {"tool": ["a"]}}`:                                        `/0/match/mcp/tool: unknown key "tool"; use "tools"`,
		`{"mcp": {"session": "yes"}}`:                                     "/0/match/mcp/session: is a string",
		`{"mcp": {"session": true}}`:                                      "/0/match/mcp/session: needs the path",
		`{"graphql": {}}`:                                                 "/0/match/graphql: is empty",
		`{"graphql": {"operations": ["Query"]}}`:                          "/0/match/graphql/operations/0: ",
		`{"graphql": {"operations": []}}`:                                 "/0/match/graphql/operations: is empty",
		`{"graphql": 1}`:                                                  "/0/match/graphql: is a number",
		`{"mcp": {"tools": ["a"]}, "graphql": {"x":1}}`:                   "/0/match: has mcp and graphql",
		`{"mcp": {"methods": ["` + strings.Repeat(`a", "`, 256) + `a"]}}`: "/0/match/mcp/methods: ",
	} {
		if _, _, err := rulesOf(t, `[{"hosts": ["a.test"], "match": `+match+`, "action": "allow"}]`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", match, err)
		}
	}
	if _, _, err := rulesOf(t, `[{"hosts": ["a.test"], "match": {"graphql": {"persisted": ["a"]}}, "action": "deny"}]`); err == nil {
		t.Error("a rule that denies lists persisted queries")
	}
	for _, doc := range []string{`{"mcp": {"tools": ["a"]}}`, `{"graphql": {"fields": ["a"]}}`} {
		var ps document.Problems
		v, _ := document.Parse([]byte(doc), &ps)
		if Compile("", *Read("", v, &ps), &ps); ps.Err() == nil || !strings.Contains(ps.Err().Error(), "only the request rules of a policy match messages") {
			t.Errorf("a header rule with %s: %v", doc, ps.Err())
		}
	}
}

// TestCoveredMessages: DecidesAllOf is sure of conditions on messages.
func TestCoveredMessages(t *testing.T) {
	t.Parallel()
	matches := []string{
		`{"mcp": {"methods": ["*"]}}`, `{"mcp": {"methods": ["tools/list"]}}`, `{"mcp": {"methods": ["tools/*"], "tools": ["a*"]}}`,
		`{"mcp": {"tools": ["ab"]}}`, `{"graphql": {"fields": ["*"]}}`, `{"graphql": {"fields": ["a"], "names": ["b"]}}`, `{"methods": ["POST"]}`,
	}
	var got []string
	for i, all := range matches {
		for j, some := range matches {
			rules, _, err := rulesOf(t, `[{"hosts": ["a.test"], "match": `+all+`, "action": "allow"}, {"hosts": ["a.test"], "match": `+some+`, "action": "allow"}]`)
			if err != nil {
				t.Fatal(err)
			}
			if i != j && rules[0].DecidesAllOf(rules[1]) {
				got = append(got, fmt.Sprint(i, ">", j))
			}
		}
	}
	if want := "[0>1 0>2 0>3 2>1 2>3 4>5]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
