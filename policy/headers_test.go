package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule/header"
)

func mustRules(t testing.TB, doc string) []HeaderRule {
	t.Helper()
	rules, err := ParseHeaderRules([]byte(doc), nil)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestFencedRules: while the fence is closed, requests to hosts of rules of the fleet are refused, whatever alternative is for them; other hosts
// are not. Without a fence it is closed. Asking does not allocate.
func TestFencedRules(t *testing.T) { // not parallel: it counts allocations
	closed := false
	rules := append(OfFleet(mustRules(t, `{"fleet.test": [{"match": {"methods": ["POST"]}, "headers": {"X-Key": "1"}}, {"match": {"methods": ["PUT"]}, "deny": true}],
		"db.test:5432": {"postgres": {"user": "u", "database": "d", "password": "p"}}, "proxy.test:3128": {"proxy": {"scheme": "http", "username": "u", "password": "p"}}}`)), mustRules(t, `{"own.test": {"X-Key": "2"}}`)...)
	compile := func(fence func() bool) *Compiled {
		t.Helper()
		c, err := Compile(Spec{Mode: ModeAllowAll, UpstreamProxy: &UpstreamSpec{URL: "http://proxy.test:3128"}}, Options{Headers: rules, Fence: fence, Protected: name.NewProtected(nil, nil)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	asks := func(host, method string) Request {
		return Request{Stage: StageHTTP, Protocol: TCP, Name: mustName(t, host), Port: 443, Method: method, Path: "/"}
	}
	c := compile(func() bool { return closed })
	for _, shut := range []bool{false, true} {
		closed = shut
		for _, method := range []string{"POST", "GET"} {
			rule, d := c.HeaderRule(asks("fleet.test", method))
			if want := map[bool]name.Reason{true: name.ReasonFleetFenced}[shut]; d.Reason != want || shut && (d.Rule != "fleet.test" || d.Allowed() || len(rule.Effects) > 0) {
				t.Errorf("closed %v, %s: %+v", shut, method, d)
			}
		}
		if rule, d := c.HeaderRule(asks("own.test", "GET")); d.Reason != "" || len(rule.Effects) != 1 || c.Fenced(&rule) {
			t.Errorf("closed %v, a rule of the host: %+v", shut, d)
		}
		if _, d := c.HeaderRule(asks("other.test", "GET")); d.Reason != "" {
			t.Errorf("closed %v, no rule: %+v", shut, d)
		}
		if c.LoginFenced(mustName(t, "db.test"), 5432) != shut || c.upstream.Fenced() != shut || c.upstream.Login == nil {
			t.Errorf("closed %v: logins %v, %v, %v", shut, c.LoginFenced(mustName(t, "db.test"), 5432), c.upstream.Fenced(), c.upstream.Login)
		}
		e := c.Explain(asks("fleet.test", "POST"), true)
		if e.Allowed() == shut {
			t.Errorf("closed %v: explained as %+v", shut, e)
		}
	}
	closed = false
	rule, _ := c.HeaderRule(asks("fleet.test", "POST"))
	if closed = true; !c.Fenced(&rule) {
		t.Error("a rule of a request that was judged before the fence closed may be used")
	}
	request := asks("fleet.test", "GET")
	if n := testing.AllocsPerRun(100, func() { _, _ = c.HeaderRule(request); _ = c.Fenced(&rule) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if _, d := compile(nil).HeaderRule(request); d.Reason != name.ReasonFleetFenced {
		t.Errorf("without a fence: %+v", d)
	}
}

// TestParseHeaderRules: both forms, and every way to write a value.
func TestParseHeaderRules(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, `{
		"z.test": {"x-compact": "1", "scrub": "a header of that name"},
		"A.test:8443": {
			"headers": {"authorization": {"secret": "openai", "prefix": "Bearer ", "suffix": " x"}, "X-A": "literal", "x-b": {"value": "other"}},
			"placeholders": {"TOKEN": "literal", "API_KEY": {"secret": "openai"}},
			"scrub": true},
		"b.test": {}, "c.test": {"headers": {}}}`)
	if len(rules) != 4 {
		t.Fatalf("%d rules", len(rules))
	}
	full := rules[0]
	headers := header.Of(full.Effects)
	if full.Pattern.String() != "a.test:8443" || !full.Scrub || len(headers) != 3 || len(full.Placeholders()) != 2 {
		t.Fatalf("%+v", full)
	}
	if h := headers[0]; h.Name != "Authorization" || h.Source != "openai" || h.Prefix != "Bearer " || h.Suffix != " x" || h.Literal.Reveal() != "" {
		t.Errorf("%+v", h)
	}
	if a, b := headers[1], headers[2]; a.Literal.Reveal() != "literal" || b.Literal.Reveal() != "other" || a.Source+b.Source != "" {
		t.Errorf("%+v %+v", a, b)
	}
	if p := full.Placeholders()[0]; p.Variable != "API_KEY" || p.Source != "openai" || p.Token != "" {
		t.Errorf("%+v", p)
	}
	if p := full.Placeholders()[1]; p.Variable != "TOKEN" || p.Literal.Reveal() != "literal" {
		t.Errorf("%+v", p)
	}
	if rules[1].Applies() || rules[2].Applies() || !full.Applies() {
		t.Error("Applies")
	}
	if compact := header.Of(rules[3].Effects); len(compact) != 2 || rules[3].Scrub || compact[0].Name != "Scrub" {
		t.Errorf("%+v", compact)
	}
}

// TestHeaderDocumentLimits: one more than any limit allows is refused, with its pointer.
func TestHeaderDocumentLimits(t *testing.T) {
	t.Parallel()
	many := func(n int, item string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strings.ReplaceAll(item, "N", "n"+strings.Repeat("x", i)))
		}
		return b.String()
	}
	hosts := func(n int) string {
		var parts []string
		for i := range n {
			parts = append(parts, `"h`+strings.Repeat("a", i%60)+`.t`+strings.Repeat("b", i/60)+`.test": {}`)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	value := strings.Repeat("v", match.MaxHeaderValue)
	for name, tt := range map[string]struct{ ok, tooMuch, at string }{
		"hosts":        {hosts(256), hosts(257), ""},
		"headers":      {`{"a.test":{` + many(64, `"N":"1"`) + `}}`, `{"a.test":{` + many(65, `"N":"1"`) + `}}`, "/a.test"},
		"full headers": {`{"a.test":{"headers":{` + many(64, `"N":"1"`) + `}}}`, `{"a.test":{"headers":{` + many(65, `"N":"1"`) + `}}}`, "/a.test/headers"},
		"placeholders": {`{"a.test":{"placeholders":{` + many(64, `"N":"1"`) + `}}}`, `{"a.test":{"placeholders":{` + many(65, `"N":"1"`) + `}}}`, "/a.test/placeholders"},
		"value":        {`{"a.test":{"x":"` + value + `"}}`, `{"a.test":{"x":"` + value + `v"}}`, "/a.test/x"},
	} {
		if _, err := ParseHeaderRules([]byte(tt.ok), nil); err != nil {
			t.Errorf("%s: the most allowed is refused: %.200s", name, err.Error())
		}
		_, err := ParseHeaderRules([]byte(tt.tooMuch), nil)
		invalid, ok := errors.AsType[*document.InvalidError](err)
		if !ok || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != tt.at {
			t.Errorf("%s: one too many: %.200v", name, err)
		}
	}
}

// TestTokens: a token depends only on box and variable, and the rules as written contain no tokens.
func TestTokens(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, `{"a.test": {"placeholders": {"KEY": "v"}}, "b.test": {"placeholders": {"KEY": "w", "OTHER": "v"}}}`)
	one, again, other := WithTokens(rules, name.NewSecret("one")), WithTokens(rules, name.NewSecret("one")), WithTokens(rules, name.NewSecret("two"))
	token := one[0].Placeholders()[0].Token
	if !regexp.MustCompile("^bxgph_[a-z2-7]{32}$").MatchString(token) {
		t.Errorf("%q is not recognised", token)
	}
	if token != again[0].Placeholders()[0].Token || token != one[1].Placeholders()[0].Token {
		t.Error("the same box and variable have two tokens")
	}
	if token == other[0].Placeholders()[0].Token || token == one[1].Placeholders()[1].Token {
		t.Error("another box or variable has the same token")
	}
	if rules[0].Placeholders()[0].Token != "" {
		t.Error("the rules as written were changed")
	}
}

// TestScrubbingOfOtherPorts: the secrets that rules mask are masked on every port of their hosts, including the hosts of wildcards.
func TestScrubbingOfOtherPorts(t *testing.T) {
	t.Parallel()
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: mustRules(t, `{
		"api.a.test": {"headers": {"X-Key": "exact-443"}, "scrub": true},
		"api.a.test:8443": {"headers": {"X-Key": "exact-8443"}},
		"*.a.test:9443": [
			{"match": {"methods": ["GET"]}, "headers": {"X-Key": "wild-9443"}, "scrub": true},
			{"headers": {"X-Key": "other-9443"}}],
		"open.a.test:9443": {"headers": {"X-Key": "exception"}},
		"b.test": {"headers": {"X-Key": "unscrubbed"}}}`), Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	exact, wild := []string{"exact-443"}, []string{"other-9443", "wild-9443"}
	all := append(slices.Clone(exact), wild...)
	for _, q := range []struct {
		host string
		port uint16
		want []string // nil: responses are unchanged
		sent int
	}{
		{"api.a.test", 443, all, 1}, {"api.a.test", 8443, all, 1}, {"api.a.test", 9443, all, 1}, {"api.a.test", 1, all, 0},
		{"x.a.test", 443, wild, 0}, {"x.y.a.test", 1, wild, 0}, {"a.test", 443, nil, 0},
		{"open.a.test", 9443, nil, 1}, {"open.a.test", 1, nil, 0}, {"b.test", 443, nil, 1}, {"b.test", 1, nil, 0}, {"c.test", 443, nil, 0},
	} {
		hostName, err := name.Parse(q.host)
		if err != nil {
			t.Fatal(err)
		}
		rule, d := c.HeaderRule(Request{Stage: StageHTTP, Name: hostName, Port: q.port, Protocol: TCP, Method: "POST", Path: "/"})
		if d.Reason != "" || len(header.Of(rule.Effects)) != q.sent || rule.Scrub != (q.want != nil) {
			t.Errorf("%s:%d: %+v, %+v", q.host, q.port, rule, d)
		}
		for _, r := range []HeaderRule{rule, c.ScrubRule(hostName)} {
			var got []string
			if r.Shared != nil {
				for _, literal := range r.Shared.Literals {
					got = append(got, literal.Reveal())
				}
			}
			if slices.Sort(got); !slices.Equal(got, q.want) {
				t.Errorf("%s:%d: %q is masked, want %q", q.host, q.port, got, q.want)
			}
		}
		if clear := c.ScrubRule(hostName); len(clear.Effects) != 0 || clear.Scrub != (q.want != nil) {
			t.Errorf("%s in the clear: %+v", q.host, clear)
		}
	}
	if rule := (*Compiled)(nil).ScrubRule(name.Name{}); rule.Scrub {
		t.Error("no policy masks something")
	}
}

// TestRulesShowNoSecret: whichever way a program writes rules, no literal of theirs is in it.
func TestRulesShowNoSecret(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, `{
		"a.test": {"headers": {"X-A": "canary"}, "placeholders": {"KEY": "canary"}, "query": {"q": "canary"}},
		"b.test": {"sign": {"aws": {"credentials": "{\"access_key_id\":\"AKID\",\"secret_access_key\":\"canary\"}", "region": "a", "service": "s3"}}},
		"c.test": {"sign": {"hmac": {"key": "canary", "header": "x-sig", "template": "{body}"}}},
		"d.test:5432": {"postgres": {"user": "u", "database": "d", "password": "canary"}},
		"e.test:3128": {"proxy": {"username": "u", "password": "canary"}}}`)
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		for _, r := range rules {
			for _, v := range []any{r, &r, header.Of(r.Effects), r.Placeholders(), r.Effects, effectOf(r)} {
				fmt.Fprintf(&out, verb+"\n", v)
			}
		}
	}
	text, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	if shown := out.String(); strings.Contains(shown, "canary") || strings.Contains(shown, "63616e617279") || !strings.Contains(shown, "X-A") {
		t.Error("the rules are shown with their literals, or not at all")
	}
}

// effectOf returns the only effect of a rule, or nil.
func effectOf(r HeaderRule) any {
	if len(r.Effects) == 0 {
		return nil
	}
	return r.Effects[0]
}
