package kinds_test

import (
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/rule/kinds"
)

// whole are rules by kind, with all members that the kind reads, and parts of them with what may stand there instead.
var whole = map[string][]struct {
	entry   string
	changes []string // old, new, old, new…
}{
	"headers": {{
		`{"headers": {"X-A": "literal", "X-B": {"secret": "k", "prefix": "p", "suffix": "s"}, "X-C": {"secret": "m", "encode": "basic", "user": "u"}}, "remove": ["X-D"]}`,
		[]string{
			"X-A", "X-E", "literal", "other", `"k"`, `"l"`, `"p"`, `"q"`, `"s"`, `"t"`, `{"secret": "m", "encode": "basic", "user": "u"}`, `{"secret": "m"}`,
			`"u"`, `"v"`, "X-D", "X-E", `"X-A": "literal", `, "", `, "remove": ["X-D"]`, "",
		},
	}},
	"placeholders": {{
		`{"placeholders": {"A": "literal", "B": {"secret": "k"}}, "places": ["header", "query"]}`,
		[]string{`"A"`, `"C"`, `"literal"`, `"other"`, `"k"`, `"l"`, `{"secret": "k"}`, `"k"`, `"query"`, `"json"`, `, "places": ["header", "query"]`, "", `"A": "literal", `, ""},
	}},
	"query": {{
		`{"query": {"a": "literal", "b": {"secret": "k", "prefix": "p", "suffix": "s"}}}`,
		[]string{`"a"`, `"c"`, `"literal"`, `"other"`, `"k"`, `"l"`, `"p"`, `"q"`, `"s"`, `"t"`, `"a": "literal", `, ""},
	}},
	"sign": {{
		`{"sign": {"aws": {"credentials": {"secret": "k"}, "region": ["a", "b"], "service": ["s3", "sts"]}}}`,
		[]string{
			`"k"`, `"l"`, `"a", "b"`, `"b", "a"`, `"a", "b"`, `"a"`, `"s3", "sts"`, `"sts", "s3"`, `"s3", "sts"`, `"s3"`,
			`{"secret": "k"}`, `"{\"access_key_id\": \"A\", \"secret_access_key\": \"one\"}"`,
			`{"aws": {"credentials": {"secret": "k"}, "region": ["a", "b"], "service": ["s3", "sts"]}}`, `{"hmac": {"key": {"secret": "k"}, "header": "X-A", "template": "{body}"}}`,
		},
	}, {
		`{"sign": {"hmac": {"key": "literal", "header": "X-A", "format": "v1={signature}", "encoding": "hex", "template": "{method}", "timestamp": {"header": "X-B", "format": "unix"}}}}`,
		[]string{
			`"literal"`, `"other"`, `"literal"`, `{"secret": "literal"}`, "X-A", "X-C", "v1=", "v2=", "hex", "base64", "{method}", "{target}", "X-B", "X-C", "unix", "rfc3339",
			`"header": "X-B", `, "",
		},
	}},
	"client_certificate": {{
		`{"client_certificate": {"certificate": {"secret": "k"}, "key": {"secret": "l"}}}`,
		[]string{`"k"`, `"m"`, `"l"`, `"m"`},
	}},
	"forward_url": {{`{"forward_url": "https://p.test:8443/in"}`, []string{"p.test", "q.test", ":8443", ":8444", ":8443", "", "/in", "/out", "/in", ""}}},
	"response_headers": {{
		`{"response_headers": {"remove": ["Server", "X-A"]}}`, []string{"Server", "X-B", `, "X-A"`, ""},
	}},
	"upstream_tls": {{`{"upstream_tls": "legacy", "headers": {"X-A": "b"}}`, []string{`"upstream_tls": "legacy", `, "", "upstream_tls", "client_tls"}}},
	"client_tls":   {{`{"client_tls": "legacy", "headers": {"X-A": "b"}}`, []string{`"client_tls": "legacy", `, ""}}},
	"lenient":      {{`{"lenient": true, "headers": {"X-A": "b"}}`, []string{`"lenient": true, `, "", "true", "false"}}},
	"meter": {
		{`{"meter": "anthropic", "headers": {"X-A": "b"}}`, []string{"anthropic", "openai", `"meter": "anthropic", `, ""}},
		{
			`{"meter": "openai", "models": {"allow": ["gpt-*"], "deny": ["gpt-4"]}}`,
			[]string{`"gpt-*"`, `"gpt-5*"`, `"gpt-4"`, `"gpt-3"`, `, "deny": ["gpt-4"]`, "", `"allow": ["gpt-*"], `, "", `, "models": {"allow": ["gpt-*"], "deny": ["gpt-4"]}`, ""},
		},
	},
	"postgres": {{
		`{"postgres": {"user": "app", "database": "orders", "password": "literal", "auth": "md5"}}`,
		[]string{"app", "other", "orders", "other", `"literal"`, `"other"`, `"literal"`, `{"secret": "literal"}`, "md5", "password", `, "auth": "md5"`, ""},
	}},
	"ssh": {{
		`{"ssh": {"user": "git", "key": {"secret": "k"}, "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"],
			"repos": [{"name": "acme/web", "access": "push"}], "commands": ["uptime"]}}`,
		[]string{
			"git", "root", `"k"`, `"l"`, "HR4f", "HR4e", `"ssh-ed25519`, `"@cert-authority ssh-ed25519`, "acme/web", "acme/other", "push", "read", "uptime", "reboot",
			`, "commands": ["uptime"]`, "", `"repos": [{"name": "acme/web", "access": "push"}], `, "",
		},
	}},
	"proxy": {{
		`{"proxy": {"scheme": "socks5", "username": "boxes", "password": "literal"}}`,
		[]string{"socks5", "http", `"scheme": "socks5", `, "", "boxes", "other", `"literal"`, `"other"`, `"literal"`, `{"secret": "literal"}`},
	}},
}

// TestRulesThatDifferSendDifferently: no part of a rule that says what is sent, or where, can change without a request that began under the
// rule being stopped. A rule that says the same lets it go on.
func TestRulesThatDifferSendDifferently(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Shown() {
		if whole[k.Key()] == nil {
			t.Errorf("there is no rule of the kind %s", k.Key())
		}
	}
	read := func(entry string) *policy.HeaderRule {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.test:5432": `+entry+`}`), nil)
		if err != nil {
			t.Fatalf("%s: %v", entry, err)
		}
		return &rules[0]
	}
	for kind, rules := range whole {
		for _, r := range rules {
			one := read(r.entry)
			if !one.SendsAlike(read(r.entry)) {
				t.Errorf("%s: the same rule sends something else", r.entry)
			}
			for i := 0; i < len(r.changes); i += 2 {
				changed := strings.Replace(r.entry, r.changes[i], r.changes[i+1], 1)
				if other := read(changed); changed == r.entry || one.SendsAlike(other) || other.SendsAlike(one) {
					t.Errorf("%s: %s sends the same as %s", kind, changed, r.entry)
				}
			}
		}
	}
}
