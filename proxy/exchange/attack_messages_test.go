package exchange_test

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
)

// messageRules allows a part of an MCP server and of a GraphQL server.
var messageRules = policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{
	{Hosts: []string{proxytest.API}, Paths: []string{"/open"}, Action: "allow"},
	{Hosts: []string{proxytest.API}, Paths: []string{"/mcp"}, Action: "allow", Match: &match.Match{MCP: &match.MCP{
		Methods: []string{"tools/list", "tools/call"}, Tools: []string{"search", "read_*"}, Session: true,
	}}},
	{Hosts: []string{proxytest.API}, Paths: []string{"/calls"}, Action: "deny", Match: &match.Match{MCP: &match.MCP{Tools: []string{"delete"}}}},
	{Hosts: []string{proxytest.API}, Paths: []string{"/calls"}, Action: "allow"},
	{Hosts: []string{proxytest.API}, Paths: []string{"/graphql"}, Action: "allow", Match: &match.Match{GraphQL: &match.GraphQL{
		Operations: []string{"query"}, Fields: []string{"user", "repo*"}, Persisted: []string{"known"},
	}}},
	{Hosts: []string{proxytest.API}, Action: "deny"},
}}

const (
	refusedByRule = "request_rule"
	unreadable    = "unreadable_content"
)

// message is a request and its expected outcome: "" if it is forwarded, else the reason.
type message struct{ what, method, target, body, want string }

// sendMessages sends each request with bodies of known and unknown length, and byte by byte. It checks the response, the event, and
// that servers receive the bytes of allowed requests only.
func sendMessages(t *testing.T, header http.Header, all []message) {
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(messageRules, proxytest.JSONRule(t, port, ""))
		n := 0
		for _, m := range all {
			bodies := map[string]io.Reader{"none": nil}
			if m.body != "" {
				bodies = map[string]io.Reader{
					"length": strings.NewReader(m.body), "stream": proxytest.Unsized(m.body), "bytes": iotest.OneByteReader(strings.NewReader(m.body)),
				}
			}
			for how, body := range bodies {
				if how == "bytes" && len(m.body) > 4096 {
					continue
				}
				status, text := proxytest.Send(t, client, m.method, "https://"+proxytest.HostPort(port)+m.target, header, body)
				got, arrived := up.Take()
				n++
				e := l.Events.Wait(t, n)[n-1]
				switch {
				case m.want == "" && (status != 200 || got == nil || arrived != m.body || e.Verdict != policy.Allow || e.Error != ""):
					t.Errorf("%s (%s): %d %s, the server received %q; event %+v", m.what, how, status, text, arrived, e)
				case m.want != "" && (status != 403 || got != nil || !strings.Contains(text, `"`+m.want+`"`)):
					t.Errorf("%s (%s): %d %s, the server received %q", m.what, how, status, text, arrived)
				case m.want != "" && (e.Verdict != policy.Deny || e.Reason != name.Reason(m.want) || (e.Error != "") != (m.want == unreadable)):
					t.Errorf("%s (%s): event %+v", m.what, how, e)
				}
			}
		}
	})
}

// call returns a call of a tool, with more members behind.
func call(tool, more string) string {
	return `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "` + tool + `", "arguments": {"a": [1, {"b": null}]}}` + more + `}`
}

// TestAttacksOnMCPRules sends the spellings of messages that servers read differently: only messages that every server reads as
// allowed ones are forwarded.
func TestAttacksOnMCPRules(t *testing.T) {
	t.Parallel()
	list := `{"jsonrpc":"2.0","id":"a","method":"tools/list"}`
	sendMessages(t, http.Header{"Content-Type": {"application/json"}}, []message{
		{"allowed method", "POST", "/mcp", list, ""},
		{"allowed tool", "POST", "/mcp", call("search", ""), ""},
		{"tool with an allowed prefix", "POST", "/mcp", call("read_file", ""), ""},
		{"escaped spelling", "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"\u006dethod":"tools\/call","params":{"n\u0061me":"se\u0061rch"}}`, ""},
		{"session", "POST", "/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`, ""},
		{"notification", "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		{"response to the server", "POST", "/mcp", `{"jsonrpc":"2.0","id":7,"result":{}}`, ""},
		{"stream", "GET", "/mcp", "", ""},
		{"end of the session", "DELETE", "/mcp", "", ""},
		{"batch", "POST", "/mcp", "[" + list + "," + call("search", "") + "]", ""},
		{"server without rules on messages", "POST", "/open", `{not json`, ""},
		{"largest body", "POST", "/mcp", strings.Replace(call("search", ""), "null", `"`+strings.Repeat("x", 1<<20-len(call("search", ""))+2)+`"`, 1), ""},
		{"other tool", "POST", "/mcp", call("delete", ""), refusedByRule},
		{"other tool, escaped", "POST", "/mcp", call(`d\u0065lete`, ""), refusedByRule},
		{"tool in another case", "POST", "/mcp", call("Search", ""), refusedByRule},
		{"method in another case", "POST", "/mcp", strings.Replace(list, "list", "List", 1), refusedByRule},
		{"other method", "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///x"}}`, refusedByRule},
		{"one denied in a batch", "POST", "/mcp", "[" + list + "," + call("delete", "") + "]", refusedByRule},
		{"other request without a body", "OPTIONS", "/mcp", "", refusedByRule},
		{"call in another case", "POST", "/mcp", strings.Replace(call("search", ""), "call", "Call", 1), unreadable},
		{"method twice", "POST", "/mcp", call("search", `, "method": "tools/list"`), unreadable},
		{"method twice, once escaped", "POST", "/mcp", call("search", `, "\u006dethod": "x"`), unreadable},
		{"method in another case too", "POST", "/mcp", call("search", `, "Method": "x"`), unreadable},
		{"key that folds", "POST", "/mcp", call("search", `, "param\u017f": {"name": "delete"}`), unreadable},
		{"message in the prototype", "POST", "/mcp", `{"jsonrpc":"2.0","id":7,"result":{},"__proto__":{"method":"tools/call","params":{"name":"delete"}}}`, unreadable},
		{"name in the prototype", "POST", "/mcp", strings.Replace(call("search", ""), `"arguments"`, `"__proto__":{"name":"delete"},"arguments"`, 1), unreadable},
		{"name twice", "POST", "/mcp", strings.Replace(call("search", ""), `"arguments"`, `"name":"delete","arguments"`, 1), unreadable},
		{"name in another case too", "POST", "/mcp", strings.Replace(call("search", ""), `"arguments"`, `"Name":"delete","arguments"`, 1), unreadable},
		{"duplicate deep inside", "POST", "/mcp", strings.Replace(call("search", ""), `{"b": null}`, `{"b": 1, "b": 2}`, 1), unreadable},
		{"two documents", "POST", "/mcp", list + call("delete", ""), unreadable},
		{"trailing data", "POST", "/mcp", list + "\x00", unreadable},
		{"byte order mark", "POST", "/mcp", "\ufeff" + list, unreadable},
		{"not UTF-8", "POST", "/mcp", call("search\xff", ""), unreadable},
		{"half of a surrogate pair", "POST", "/mcp", call(`search\ud800`, ""), unreadable},
		{"NUL behind the tool", "POST", "/mcp", call(`search\u0000x`, ""), unreadable},
		{"blank behind the tool", "POST", "/mcp", call("search ", ""), unreadable},
		{"tool that is no string", "POST", "/mcp", strings.Replace(call("search", ""), `"search"`, `["search"]`, 1), unreadable},
		{"parameters in a list", "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["search"]}`, unreadable},
		{"another version", "POST", "/mcp", strings.Replace(list, "2.0", "1.0", 1), unreadable},
		{"ID that is a number of the wrong kind", "POST", "/mcp", strings.Replace(list, `"a"`, `1e3`, 1), unreadable},
		{"ID that is null", "POST", "/mcp", strings.Replace(list, `"a"`, `null`, 1), unreadable},
		{"request and response", "POST", "/mcp", call("search", `, "result": {}`), unreadable},
		{"nested batch", "POST", "/mcp", "[[" + list + "]]", unreadable},
		{"empty batch", "POST", "/mcp", "[]", unreadable},
		{"large batch", "POST", "/mcp", "[" + strings.Repeat(list+",", 64) + list + "]", unreadable},
		{"deep nesting", "POST", "/mcp", strings.Replace(call("search", ""), "null", strings.Repeat("[", 100)+strings.Repeat("]", 100), 1), unreadable},
		{"large body", "POST", "/mcp", strings.Replace(call("search", ""), "null", `"`+strings.Repeat("x", 1<<20)+`"`, 1), unreadable},
		{"no body", "POST", "/mcp", "", unreadable},
		{"body of a GET", "GET", "/mcp", list, unreadable},
		{"body of a PUT", "PUT", "/mcp", list, unreadable},
		{"not denied", "POST", "/calls", call("search", ""), ""},
		{"denied", "POST", "/calls", call("delete", ""), refusedByRule},
		{"denied in a batch", "POST", "/calls", "[" + list + "," + call("delete", "") + "]", refusedByRule},
		{"denied for some servers", "POST", "/calls", call("DELETE", ""), refusedByRule},
		{"unreadable where a rule denies", "POST", "/calls", call("search", "")[1:], unreadable},
	})
}

// TestRefusedMessagesAreNamed: the decision and the answer name the tool or operation of a request that a rule on messages decides, in
// printable text without parameters. Other requests have none.
func TestRefusedMessagesAreNamed(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, _ *proxytest.Recorder) {
		l.Rules(messageRules, proxytest.JSONRule(t, port, ""))
		header := http.Header{"Content-Type": {"application/json"}}
		for n, tt := range []struct{ path, body, want string }{
			{"/mcp", call("search", ""), "tools/call search"},
			{"/mcp", call("delete", ""), "tools/call delete"},
			{"/mcp", call("delete é", ""), `tools/call "delete \u00e9"`},
			{"/calls", call("delete", ""), "tools/call delete"},
			{"/graphql", `{"query": "mutation Gone {a: remove(id: \"secret\") {id}}"}`, "mutation Gone {remove}"},
			{"/graphql", `{"id": "\u001b[2Jx"}`, `persisted "\x1b[2Jx"`},
			{"/mcp", `{`, ""},
			{"/open", call("delete", ""), ""},
		} {
			status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+tt.path, header, strings.NewReader(tt.body))
			e := l.Events.Wait(t, n+1)[n]
			if e.Messages != tt.want || strings.Contains(text, "secret") || strings.Contains(text, "\x1b") {
				t.Errorf("%s %s: event of %q, %s", tt.path, tt.body, e.Messages, text)
			}
			var page struct{ Detail string }
			if status == 403 && (json.Unmarshal([]byte(text), &page) != nil || !strings.HasSuffix(page.Detail, cmp.Or(tt.want, "document"))) {
				t.Errorf("%s %s: %s", tt.path, tt.body, text)
			}
		}
	})
}

// TestAttacksByTheHeadOfMessages: media types, charsets and fields that repeat the body do not make servers read another message.
func TestAttacksByTheHeadOfMessages(t *testing.T) {
	t.Parallel()
	body := call("search", "")
	for _, tt := range []struct {
		header http.Header
		want   string
	}{
		{http.Header{"Content-Type": {"Application/JSON ; charset=\"UTF-8\""}, "Mcp-Protocol-Version": {"2025-06-18"}}, ""},
		{http.Header{"Content-Type": {"application/json"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"search"}}, ""},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity"}}, ""},
		{http.Header{}, unreadable},
		{http.Header{"Content-Type": {"text/plain"}}, unreadable},
		{http.Header{"Content-Type": {"application/json; charset=utf-16"}}, unreadable},
		{http.Header{"Content-Type": {"application/json", "text/plain"}}, unreadable},
		{http.Header{"Content-Type": {"application/json, text/plain"}}, unreadable},
		{http.Header{"Content-Type": {"application/json"}, "Mcp-Name": {"delete"}}, unreadable},
		{http.Header{"Content-Type": {"application/json"}, "Mcp-Method": {"tools/list"}}, unreadable},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, unreadable},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"compress"}}, unreadable},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "identity"}}, unreadable},
	} {
		sendMessages(t, tt.header, []message{{"a call", "POST", "/mcp", body, tt.want}})
	}
}

// TestMessagesInContentCodings: rules read bodies in every coding, and forward them unchanged.
func TestMessagesInContentCodings(t *testing.T) {
	t.Parallel()
	encode := func(coding, text string) string {
		out, err := scrub.Encoded([]string{coding}, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	large := strings.Replace(call("search", ""), "null", `"`+strings.Repeat("x", 1<<20)+`"`, 1)
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		body := encode(coding, call("search", ""))
		sendMessages(t, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {coding}}, []message{
			{coding, "POST", "/mcp", body, ""},
			{coding + ", denied", "POST", "/mcp", encode(coding, call("delete", "")), refusedByRule},
			{coding + ", cut off", "POST", "/mcp", body[:len(body)-3], unreadable},
			{coding + " that is none", "POST", "/mcp", call("search", ""), unreadable},
			{coding + ", large when decoded", "POST", "/mcp", encode(coding, large), unreadable},
		})
	}
}

// TestAttackMessageOfTwoCodings: a body that is one message decoded and another as sent is refused. The stream of raw deflate below has one
// stored block, whose length is part of a comment for a server that ignores Content-Encoding.
func TestAttackMessageOfTwoCodings(t *testing.T) {
	t.Parallel()
	const head, size = "\x09#A\xdc\xbe", 'A'<<8 | '#'
	text := "{user(id: \"\"\"\nmutation {secrets} # \"\"\") {name}}"
	body := head + text + strings.Repeat(" ", size-len(text))
	decoded, fits, err := scrub.Decoded([]string{"deflate"}, []byte(body), 1<<20, scrub.Limit{Between: 1 << 20, Plain: 1 << 20, Times: 100})
	if err != nil || !fits || strings.TrimSpace(string(decoded)) != text {
		t.Fatalf("decoded: %.80q, %v", decoded, err)
	}
	sendMessages(t, http.Header{"Content-Type": {"application/graphql"}, "Content-Encoding": {"deflate"}}, []message{
		{"one message or another", "POST", "/graphql", body, unreadable},
	})
}

// TestAttacksOnGraphQLRules: root fields are found whatever their spelling, and persisted queries pass only if they are listed.
func TestAttacksOnGraphQLRules(t *testing.T) {
	t.Parallel()
	doc := func(text string) string {
		return `{"query": "` + strings.NewReplacer("\n", `\n`, "\r", `\r`, `"`, `\"`).Replace(text) + `"}`
	}
	get := func(text string) string { return "/graphql?query=" + url.QueryEscape(text) }
	sum := proxytest.HashOf("{user}")
	sendMessages(t, http.Header{"Content-Type": {"application/json"}}, []message{
		{"allowed field", "POST", "/graphql", doc(`{user(id: 1) {deleteAll}}`), ""},
		{"named operation", "POST", "/graphql", `{"query": "query A {user} query B {repos}", "operationName": "B", "variables": null}`, ""},
		{"fragments", "POST", "/graphql", doc(`query A {...F ... on Query {repo}} fragment F on Query {user ...G} fragment G on Query {...F}`), ""},
		{"by GET", "GET", get("{user}"), "", ""},
		{"page of the server", "GET", "/graphql?page=1", "", refusedByRule},
		{"persisted, listed", "POST", "/graphql", `{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "known"}}}`, ""},
		{"persisted with its text", "POST", "/graphql", `{"query": "{user}", "extensions": {"persistedQuery": {"version": 1, "sha256Hash": "` + sum + `"}}}`, ""},
		{"batch", "POST", "/graphql", "[" + doc("{user}") + "," + doc("{repo}") + "]", ""},
		{"other field", "POST", "/graphql", doc(`{secrets}`), refusedByRule},
		{"behind an alias", "POST", "/graphql", doc(`{user: secrets}`), refusedByRule},
		{"behind an allowed one", "POST", "/graphql", doc(`{user, secrets}`), refusedByRule},
		{"in a fragment", "POST", "/graphql", doc(`{user ...F} fragment F on Query {secrets}`), refusedByRule},
		{"in an inline fragment", "POST", "/graphql", doc(`{user ... @include(if: true) {secrets}}`), refusedByRule},
		{"skipped or not", "POST", "/graphql", doc(`query($s: Boolean!) {user secrets @skip(if: $s)}`), refusedByRule},
		{"introspection", "POST", "/graphql", doc(`{user __schema {types {name}}}`), refusedByRule},
		{"mutation", "POST", "/graphql", doc(`mutation {user}`), refusedByRule},
		{"mutation by GET", "GET", get("mutation {user}"), "", refusedByRule},
		{"after a comment", "POST", "/graphql", doc("{user # comment\nsecrets}"), refusedByRule},
		{"operation by name", "POST", "/graphql", `{"query": "query A {user} query B {secrets}", "operationName": "B"}`, refusedByRule},
		{"one denied in a batch", "POST", "/graphql", "[" + doc("{user}") + "," + doc("{secrets}") + "]", refusedByRule},
		{"persisted, not listed", "POST", "/graphql", `{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "other"}}}`, refusedByRule},
		{"persisted by another key", "POST", "/graphql", `{"doc_id": 12}`, refusedByRule},
		{"persisted by GET", "GET", `/graphql?extensions={"persistedQuery":{"sha256Hash":"other"}}`, "", refusedByRule},
		{"persisted under the hash of another text", "POST", "/graphql", `{"query": "{user }", "extensions": {"persistedQuery": {"sha256Hash": "` + sum + `"}}}`, unreadable},
		{"listed hash with a text", "POST", "/graphql", `{"query": "{secrets}", "extensions": {"persistedQuery": {"sha256Hash": "known"}}}`, unreadable},
		{"listed ID with another", "POST", "/graphql", `{"id": "known", "documentId": "other"}`, unreadable},
		{"ID with a text", "POST", "/graphql", `{"query": "{user}", "id": "other"}`, unreadable},
		{"in another case", "POST", "/graphql", `{"query": "{user}", "Query": "{secrets}"}`, unreadable},
		{"unknown key", "POST", "/graphql", `{"query": "{user}", "operation": "x"}`, unreadable},
		{"twice", "POST", "/graphql", `{"query": "{user}", "query": "{secrets}"}`, unreadable},
		{"in the query and the body", "POST", get("{secrets}"), doc("{user}"), unreadable},
		{"name in the query", "POST", "/graphql?operationName=B", doc("query A {user}"), unreadable},
		{"twice by GET", "GET", get("{user}") + "&query=%7Bsecrets%7D", "", unreadable},
		{"as an element by GET", "GET", get("{user}") + "&query[]=%7Bsecrets%7D", "", unreadable},
		{"persisted by a key of another server", "GET", "/graphql?operationId=other", "", unreadable},
		{"separated by a semicolon", "GET", get("{user}") + ";query=%7Bsecrets%7D", "", unreadable},
		{"several operations without a name", "POST", "/graphql", doc("query A {user} query B {repo}"), unreadable},
		{"name that no operation has", "POST", "/graphql", `{"query": "query A {user}", "operationName": "B"}`, unreadable},
		{"two of a name", "POST", "/graphql", `{"query": "query A {user} query A {secrets}", "operationName": "A"}`, unreadable},
		{"two fragments of a name", "POST", "/graphql", doc(`{...F} fragment F on Query {user} fragment F on Query {secrets}`), unreadable},
		{"unknown fragment", "POST", "/graphql", doc(`{user ...F}`), unreadable},
		{"comment that a carriage return ends", "POST", "/graphql", doc("{user # \rsecrets\n}"), unreadable},
		{"byte order mark", "POST", "/graphql", doc("{user \ufeff secrets}"), unreadable},
		{"syntax error", "POST", "/graphql", doc("{user"), unreadable},
		{"schema", "POST", "/graphql", doc("type Query {user: String}"), unreadable},
		{"many tokens", "POST", "/graphql", doc("{" + strings.Repeat("user ", 9000) + "}"), unreadable},
		{"deep nesting", "POST", "/graphql", doc(strings.Repeat("{user", 2000) + strings.Repeat("}", 2000)), unreadable},
		{"no document", "POST", "/graphql", `{}`, unreadable},
	})
	sendMessages(t, http.Header{"Content-Type": {"application/graphql"}}, []message{
		{"document", "POST", "/graphql", "{user}", ""},
		{"other field", "POST", "/graphql", "{secrets}", refusedByRule},
		{"document in JSON", "POST", "/graphql", doc("{user}"), unreadable},
		{"not UTF-8", "POST", "/graphql", "{user(a: \"\xff\")}", unreadable},
	})
	form := "--x\r\nContent-Disposition: form-data; name=\"operations\"\r\n\r\n" + doc("{user}") + "\r\n--x--\r\n"
	sendMessages(t, http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}, []message{{"multipart", "POST", "/graphql", form, unreadable}})
}
