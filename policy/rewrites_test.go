package policy

import (
	"errors"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/rule"
	"boxgate/rule/header"
)

const awsKeys = `"{\"access_key_id\":\"AKID\",\"secret_access_key\":\"canary\"}"`

// TestParseRewrites covers the changes of a rule to other parts than headers, in all notations.
func TestParseRewrites(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, `{
		"a.test": {"sign": {"aws": {"credentials": `+awsKeys+`, "region": "eu-central-1", "service": ["s3", "sts"]}}},
		"b.test": {"sign": {"hmac": {"key": {"secret": "k"}, "header": "x-sig", "template": "{method}\n{target}\n{body}", "encoding": "base64",
			"format": "v1={signature}", "timestamp": {"header": "x-time", "format": "rfc3339"}}}},
		"c.test": {"query": {"key": {"secret": "k", "prefix": "p"}, "a": "literal"}, "scrub": false},
		"d.test": {"placeholders": {"KEY": "v"}, "places": ["header", "query", "form", "json", "websocket"]},
		"e.test": {"headers": {"Authorization": {"secret": "k", "encode": "basic", "user": "me"}, "X-L": {"value": "pw", "encode": "basic"}}}}`)
	a, b, c, d, e := rules[0], rules[1], rules[2], rules[3], rules[4]
	if a.Scrub || rule.Requests(a.Effects).Signer == nil || len(a.Secrets()) != 0 {
		t.Errorf("%+v", a)
	}
	if b.Scrub || rule.Requests(b.Effects).Signer == nil || strings.Join(b.Secrets(), " ") != "k" {
		t.Errorf("%+v", b)
	}
	if q := rule.Requests(c.Effects).Query; q == nil || strings.Join(q.Parameters(), " ") != "a key" || strings.Join(c.Secrets(), " ") != "k" || c.Scrub {
		t.Errorf("%+v", c)
	}
	if p := rule.Requests(d.Effects).Places; !p.Has(rule.InQuery|rule.InForm|rule.InJSON|rule.InWebSocket) || !d.Scrub || strings.Join(p.Names(), " ") != "header query form json websocket" {
		t.Errorf("%+v", d)
	}
	if h := header.Of(e.Effects); !h[0].Basic || h[0].User != "me" || h[0].Source != "k" || h[1].Literal.Reveal() != "Basic OnB3" || h[1].Basic {
		t.Errorf("%+v", h)
	}
	for _, r := range rules[:4] {
		does := rule.Requests(r.Effects)
		if !r.Applies() || !does.Rewrites() {
			t.Errorf("%s does not apply", r.Pattern)
		}
	}
	if does := rule.Requests(e.Effects); does.Rewrites() {
		t.Error("basic authentication is a header like others")
	}
}

// TestRewriteProblems: each mistake has its pointer, and no value is shown.
func TestRewriteProblems(t *testing.T) {
	t.Parallel()
	aws := func(more string) string {
		return `{"sign": {"aws": {"region": "r", "service": "s3", "credentials": ` + awsKeys + more + `}}}`
	}
	hmac := func(more string) string {
		return `{"sign": {"hmac": {"key": "canary", "header": "X-Sig", "template": "{path}"` + more + `}}}`
	}
	for entry, at := range map[string]string{
		`{"sign": {}}`: "/sign",
		`{"sign": {"aws": {}}, "headers": {"X": {"secret": "k"}}}`:                            "/sign/aws/credentials",
		`{"sign": {"aws": {"credentials": "canary", "region": "r", "service": "s"}}}`:         "/sign/aws/credentials",
		`{"sign": {"aws": {"credentials": {"secret": "k"}, "region": "R_", "service": "s"}}}`: "/sign/aws/region",
		`{"sign": {"aws": {"credentials": {"secret": "k"}, "region": [], "service": "s"}}}`:   "/sign/aws/region",
		`{"sign": {"hmac": {"key": "canary", "header": "Host", "template": "x"}}}`:            "/sign/hmac/header",
		aws(`, "extra": 1`):                        "/sign/aws/extra",
		hmac(`, "encoding": "octal"`):              "/sign/hmac/encoding",
		hmac(`, "format": "v1"`):                   "/sign/hmac/format",
		hmac(`, "format": "{signature}{x}"`):       "/sign/hmac/format",
		hmac(`, "timestamp": {"format": 1}`):       "/sign/hmac/timestamp/format",
		hmac(`, "timestamp": {"header": "x_sig"}`): "/sign/hmac/timestamp",
		`{"sign": {"hmac": {"key": "canary", "header": "X", "template": "{secret}"}}}`:        "/sign/hmac/template",
		strings.TrimSuffix(aws(""), "}") + `, "headers": {"authorization": {"secret": "k"}}}`: "/headers/Authorization",
		strings.TrimSuffix(hmac(""), "}") + `, "headers": {"X_Sig": {"secret": "k"}}}`:        "/headers/X_sig",
		`{"places": ["header", "json"]}`:                                        "/places",
		`{"placeholders": {"K": "canary"}, "places": ["json"]}`:                 "/places",
		`{"placeholders": {"K": "canary"}, "places": ["header", "cookie"]}`:     "/places/1",
		`{"query": {"a b": "canary"}}`:                                          "/query/a…",
		`{"query": {"a": ""}}`:                                                  "/query/a",
		`{"query": {"a": {"secret": "k", "encode": "basic"}}}`:                  "/query/a/encode",
		`{"headers": {"A": {"secret": "k", "user": "u"}}}`:                      "/headers/A/user",
		`{"headers": {"A": {"secret": "k", "encode": "hex"}}}`:                  "/headers/A/encode",
		`{"headers": {"A": {"secret": "k", "encode": "basic", "user": "a:b"}}}`: "/headers/A/user",
		`{"headers": {"A": {"secret": "k", "encode": "basic", "prefix": "a"}}}`: "/headers/A",
	} {
		_, err := ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		invalid, ok := errors.AsType[*document.InvalidError](err)
		if !ok {
			t.Errorf("%s is accepted", entry)
			continue
		}
		if invalid.Problems[0].Pointer != "/a.test"+at || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", entry, err, at)
		}
	}
}
