package content

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

var post = Head{Method: "POST", HasBody: true, Types: []string{"application/json"}}

// TestReadMCP compares messages with the body; the attacks on the proxy have the flaws.
func TestReadMCP(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]any{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a b","_meta":{"progressToken":1}}}`: []Message{{Method: "tools/call", Tool: "a b"}},
		` [{"jsonrpc":"2.0","method":"ping"},{"jsonrpc":"2.0","id":"x","error":{"code":1}}]` + "\n":          []Message{{Method: "ping"}, {Session: true}},
		`{"jsonrpc":"2.0","id":-12,"method":"x","params":{"Name":1}}`:                                        []Message{{Method: "x"}},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`:                                                     errMessage,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":""}}`:                                errName,
		`{"jsonrpc":"2.0","id":1,"method":"tools-/call","params":{"name":"a"}}`:                              errName,
		`{"jsonrpc":"2.0","id":true,"method":"x"}`:                                                           errMessage,
		`{"jsonrpc":2.0,"id":1,"method":"x"}`:                                                                errMessage,
		`{"json_rpc":"2.0","jsonrpc":"2.0","id":1,"method":"x"}`:                                             errSpelling,
		`{"jsonrpc":"2.0","id":1}`:                                                                           errMessage,
		`{"jsonrpc":"2.0","result":1}`:                                                                       errMessage,
		`"tools/list"`:                                                                                       errMessage,
		`{"a":"\udc00"}`:                                                                                     errSurrogate,
		`{"a":"\\ud800"}`:                                                                                    errMessage,
		`{"a":"\ud83d\ude00"}`:                                                                               errMessage,
		`{"a":"\ud83d\\ude00"}`:                                                                              errSurrogate,
		`{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`:                                    errLarge,
		`{"a":[` + strings.Repeat("1,", maxValues) + `1]}`:                                                   errLarge,
		`[` + strings.Repeat("1,", maxKeys+1) + `1]`:                                                         errLarge,
	} {
		got, err := readMCP(&post, []byte(body))
		if ok := err == nil && reflect.DeepEqual(got, want) || err != nil && any(err) == want; !ok {
			t.Errorf("%.80s: %+v %v, want %v", body, got, err, want)
		}
	}
}

// TestReadGraphQL compares operations with documents.
func TestReadGraphQL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		`{a b: c a}`: Operation{"query", "", []string{"a", "c"}, ""},
		`mutation M($a: [Int!] = [1]) @d {x(a: $a) {y}}`: Operation{"mutation", "M", []string{"x"}, ""},
		`{a(b: """{c} # """)}`:                           Operation{"query", "", []string{"a"}, ""},
		"{a # b\r\nc}":                                   Operation{"query", "", []string{"a", "c"}, ""},
		`subscription {... {...F}} fragment F on S {z}`:  Operation{"subscription", "", []string{"z"}, ""},
		`{`:             errDocument,
		``:              errOperation,
		`{a} query {b}`: errOperation,
		"{a\x00}":       errText,
		"{a\u2028b}":    errText,
		`{a} fragment F on Q {b} fragment F on Q {c}`: errFragments,
	} {
		got, err := parseOperation(text, "")
		if ok := err == nil && reflect.DeepEqual(got, want) || err != nil && any(err) == want; !ok {
			t.Errorf("%q: %+v %v, want %v", text, got, err, want)
		}
	}
	var fields strings.Builder
	for i := range maxFields + 1 {
		fmt.Fprintf(&fields, " f%d", i)
	}
	if _, err := parseOperation("{"+fields.String()+"}", ""); !errors.Is(err, errDocument) {
		t.Errorf("many fields: %v", err)
	}
}

// TestSummary: decisions name what a request asks for, in bounded and printable text.
func TestSummary(t *testing.T) {
	t.Parallel()
	many := func(prefix string) (out []string) {
		for i := range 100 {
			out = append(out, fmt.Sprint(prefix, i))
		}
		return out
	}
	var calls []Message
	for _, tool := range many("tool") {
		calls = append(calls, Message{Method: CallTool, Tool: tool})
	}
	for want, c := range map[string]*Content{
		"":                              nil,
		"tools/list":                    {Messages: []Message{{Method: "tools/list"}, {Session: true}, {Method: "tools/list"}}},
		"initialize, tools/call delete": {Messages: []Message{{Method: "initialize"}, {Method: CallTool, Tool: "delete"}}},
		`tools/call "a b\u00e9"`:        {Messages: []Message{{Method: CallTool, Tool: "a bé"}}},
		"mutation M {a b}, persisted x": {Operations: []Operation{{Type: "mutation", Name: "M", Fields: []string{"a", "b"}}, {Persisted: "x"}}},
		`persisted "\x1b[2J"`:           {Operations: []Operation{{Persisted: "\x1b[2J"}}},
		"persisted " + strings.Repeat("x", maxSummed) + "...": {Operations: []Operation{{Persisted: strings.Repeat("x", 1<<16)}}},
	} {
		if got := c.Summary(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for what, c := range map[string]*Content{"calls": {Messages: calls}, "fields": {Operations: []Operation{{Type: "query", Fields: many("field")}}}} {
		if got := c.Summary(); len(got) > maxSummary+32 || !strings.Contains(got, " more") || !strings.Contains(got, "0") {
			t.Errorf("many %s: %q", what, got)
		}
	}
}

// FuzzMCP compares accepted messages with encoding/json, which ignores case and takes the last duplicate.
func FuzzMCP(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`, `[{"jsonrpc":"2.0","method":"x"}]`,
		`{"jsonrpc":"2.0","id":"\u00e9","result":{}}`, `{"jsonrpc":"2.0","id":1,"method":"x","METHOD":"y"}`, `{"a":"\ud800\udc00"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := readMCP(&post, body)
		if err != nil {
			return
		}
		type message struct {
			Method string
			Params struct{ Name any }
		}
		var all []message
		if body = []byte(strings.TrimSpace(string(body))); body[0] != '[' {
			body = []byte("[" + string(body) + "]")
		}
		if err := json.Unmarshal(body, &all); err != nil || len(all) != len(got) {
			t.Fatalf("%q: %d messages, %v", body, len(got), err)
		}
		for i, m := range got {
			if m.Method != all[i].Method || m.Session != (m.Method == "") || m.Tool != "" && m.Tool != all[i].Params.Name ||
				(m.Tool != "") != (m.Method == CallTool) || !utf8.ValidString(m.Method+m.Tool) {
				t.Fatalf("%q: %+v, %+v", body, m, all[i])
			}
		}
	})
}

// FuzzGraphQL: every accepted operation has a kind and only names of the document, and reading it does not depend on comments that
// follow it.
func FuzzGraphQL(f *testing.F) {
	for _, s := range []string{
		`{a b: c}`, `mutation M {x}`, `{...F} fragment F on Q {a ...F}`, `query A {a} query B {b}`, `{a @skip(if: true) ... on Q {b}}`, `{a(b: "\u{61}")}`,
	} {
		f.Add(s, "A")
		f.Add(s, "")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		got, err := parseOperation(text, name)
		if err != nil {
			return
		}
		if got.Type != "query" && got.Type != "mutation" && got.Type != "subscription" || name != "" && got.Name != name {
			t.Fatalf("%q: %+v", text, got)
		}
		for _, s := range got.Fields {
			if s == "" || !strings.Contains(text, s) {
				t.Fatalf("%q: %+v", text, got)
			}
		}
		again, err := parseOperation(text+"\n#{secrets}", name)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("%q with a comment: %+v %v", text, again, err)
		}
	})
}

// FuzzRequests: no request makes the readers panic, and a flaw has no messages.
func FuzzRequests(f *testing.F) {
	f.Add("GET", "query=%7Ba%7D&extensions=%7B%7D", "application/json", []byte(nil))
	f.Add("POST", "", "application/json", []byte(`[{"query":"{a}","operationName":null,"extensions":{"persistedQuery":{"sha256Hash":"x"}}}]`))
	f.Add("POST", "", "application/graphql", []byte(`{a}`))
	f.Fuzz(func(t *testing.T, method, query, media string, body []byte) {
		h := Head{Method: method, Query: query, Types: []string{media}, HasBody: len(body) > 0}
		var none *Content
		c := none.With(MCP, &h, body).With(GraphQL, &h, body)
		if c.Flaw(MCP) != "" && c.Messages != nil || c.Flaw(GraphQL) != "" && c.Operations != nil || none.Has(MCP) || !c.Has(GraphQL) {
			t.Fatalf("%+v", c)
		}
		if text := c.Summary(); len(text) > maxSummary+32 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("summary %q", text)
		}
		for _, o := range c.Operations {
			if (o.Persisted == "") == (o.Type == "") {
				t.Fatalf("%+v", o)
			}
		}
	})
}
