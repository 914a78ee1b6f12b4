package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

const awsKeys = `"{\"access_key_id\":\"AKID\",\"secret_access_key\":\"canary\"}"`

// TestParseRewrites: what a rule changes besides headers, in every way to write it.
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
	if s := a.Sign.AWS; s == nil || s.Credentials.Source != "" || strings.Join(s.Regions, ",") != "eu-central-1" || strings.Join(s.Services, ",") != "s3,sts" || a.Scrub {
		t.Errorf("%+v", a)
	}
	if s := b.Sign.HMAC; s == nil || s.Key.Source != "k" || s.Header != "X-Sig" || s.Timestamp != "X-Time" || s.Clock != "rfc3339" || s.Encoding != "base64" || !s.NeedsBody() {
		t.Errorf("%+v", b)
	}
	if q := c.Query; len(q) != 2 || q[0].Name != "a" || q[0].Value.Reveal() != "literal" || q[1].Source != "k" || q[1].Prefix != "p" || c.Scrub {
		t.Errorf("%+v", c)
	}
	if !d.Places.Has(InQuery|InForm|InJSON|InWebSocket) || !d.Scrub || strings.Join(d.Places.Names(), " ") != "header query form json websocket" {
		t.Errorf("%+v", d)
	}
	if h := e.Headers; !h[0].Basic || h[0].User != "me" || h[0].Source != "k" || h[1].Value.Reveal() != "Basic OnB3" || h[1].Basic {
		t.Errorf("%+v", h)
	}
	for _, r := range rules[:4] {
		if !r.Applies() || !r.Rewrites() {
			t.Errorf("%s does not apply", r.Pattern)
		}
	}
	if e.Rewrites() {
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

// TestParseAWSCredentials: both forms, which come back from their own text as they were, and nothing of the value in an error.
func TestParseAWSCredentials(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, expires := range map[string]time.Time{
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"token"}`:                                                        {},
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T03:04:05Z"}`:             end,
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T04:04:05+01:00","x": 1}`: end,
	} {
		c, err := ParseAWSCredentials(name.NewSecret(text))
		if err != nil || c.AccessKeyID != "AKID" || c.SecretAccessKey.Reveal() != "canary" || c.SessionToken.Reveal() != "token" || !c.Expires.Equal(expires) {
			t.Errorf("%s: %+v %v", text, c, err)
		}
		again, err := ParseAWSCredentials(c.Secret())
		if err != nil || !sameCredentials(c, again) {
			t.Errorf("%s: came back as %+v, %v", text, again, err)
		}
		if err := match.CheckHeaderValue(c.Secret().Reveal()); err != nil {
			t.Errorf("the value does not fit in one line: %v", err)
		}
	}
	for _, text := range []string{
		"", "canary", `{}`, `["canary"]`, `"canary"`, `{"access_key_id":"AKID"}`, `{"access_key_id":"AK/ID","secret_access_key":"canary"}`,
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"a\r\nb"}`, `{"AccessKeyId":"AKID","secret_access_key":"canary"}`,
		`{"AccessKeyId":"AKID","SecretAccessKey":"canary","Expiration":"canary"}`, `{"Version":2,"AccessKeyId":"AKID","SecretAccessKey":"canary"}`,
		`{"AccessKeyId":"AKIA\r\nX: y","SecretAccessKey":"canary"}`, `{"SecretAccessKey":"canary"}`,
	} {
		if c, err := ParseAWSCredentials(name.NewSecret(text)); err == nil || c != (AWSCredentials{}) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v %v", text, c, err)
		}
	}
}

func sameCredentials(a, b AWSCredentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey.Equal(b.SecretAccessKey) && a.SessionToken.Equal(b.SessionToken) && a.Expires.Equal(b.Expires)
}

func FuzzParseAWSCredentials(f *testing.F) {
	f.Add(`{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","SessionToken":"t","Expiration":"2026-11-23T01:02:03Z"}`)
	f.Add(`{"access_key_id":"AKIA","secret_access_key":"s"}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseAWSCredentials(name.NewSecret(text))
		if err != nil {
			return
		}
		if again, err := ParseAWSCredentials(c.Secret()); err != nil || !sameCredentials(c, again) {
			t.Errorf("%q is read as %+v, and then as %+v, %v", text, c, again, err)
		}
	})
}
