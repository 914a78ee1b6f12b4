package policy

import (
	"testing"

	"boxgate/policy/content"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// TestShortSecretsAreWarnedOf: a value that is too short to be masked stays visible, and the user must be told.
func TestShortSecretsAreWarnedOf(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{"a.example.com": {"headers": {"X-Short": "1234567", "X-Long": "12345678", "X-Source": {"secret": "s"}}, "scrub": true}}`: "/attach_headers/a.example.com/headers/X-Short",
		`{"a.example.com": {"placeholders": {"KEY": "short"}, "scrub": true}}`:                                                     "/attach_headers/a.example.com/placeholders/KEY",
		`{"a.example.com": {"query": {"key": "short", "long": "12345678"}}}`:                                                       "/attach_headers/a.example.com/query/key",
		`{"a.example.com": {"headers": {"X-Long": "12345678"}, "remove": ["X-Debug", "X-Goog-Meta-Owner"], "scrub": true}}`:        "",
		`{"a.example.com": {"headers": {"X-Short": "1234567"}}}`:                                                                   "",
	} {
		rules, err := ParseHeaderRules([]byte(doc), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range c.Warnings() {
			got += p.Pointer
		}
		if got != want {
			t.Errorf("%s: warnings for %q, want %q", doc, got, want)
		}
	}
}

// TestShownHeadersAreWarnedOf: a user who has the gateway set a header that servers show again must be told.
func TestShownHeadersAreWarnedOf(t *testing.T) {
	t.Parallel()
	rules, err := ParseHeaderRules([]byte(`{"a.example.com": {"headers": {"Authorization": "secret-1", "X-Goog-Meta-Owner": "secret-2", "Sec-WebSocket-Protocol": {"secret": "s"}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range c.Warnings() {
		got += p.Pointer + " "
	}
	if want := "/attach_headers/a.example.com/headers/Sec-Websocket-Protocol /attach_headers/a.example.com/headers/X-Goog-Meta-Owner "; got != want {
		t.Errorf("warnings for %q, want %q", got, want)
	}
}

// TestMatchesThatNoRequestHas: there is a warning for each match that no request can satisfy, and no other warning.
func TestMatchesThatNoRequestHas(t *testing.T) {
	t.Parallel()
	const a = `{"match": {"methods": ["GET"], "path": {"prefix": "/v1/"}, "query": {"q": {"prefix": "x"}}}, "headers": {"X-A": "1"}}`
	for doc, want := range map[string]string{
		`[` + a + `, {"match": {"methods": ["GET"], "path": {"exact": "/v1/a"}, "query": {"q": {"exact": "xy"}, "r": {"exact": "1"}}}, "headers": {"X-A": "2"}}]`: "/attach_headers/a.example.com/1",
		`[{"headers": {"X-A": "1"}}, ` + a + `]`: "/attach_headers/a.example.com/1",
		`[` + a + `, {"headers": {"X-A": "1"}}]`: "",
		`[` + a + `, {"match": {"methods": ["GET", "POST"], "path": {"prefix": "/v1/"}, "query": {"q": {"prefix": "x"}}}, "headers": {"X-A": "2"}}]`: "",
		`[` + a + `, {"match": {"methods": ["GET"], "path": {"prefix": "/v"}, "query": {"q": {"prefix": "x"}}}, "headers": {"X-A": "2"}}]`:           "",
		`{"match": {"methods": ["CONNECT", "PROPFIND"]}, "headers": {"X-A": "1"}}`:                                                                   "/attach_headers/a.example.com/match/methods/0",
		`{"match": {"path": {"regex": "^v1/"}}, "headers": {"X-A": "1"}}`:                                                                            "/attach_headers/a.example.com/match/path/regex",
		`{"match": {"path": {"regex": "/search\\?q="}}, "headers": {"X-A": "1"}}`:                                                                    "/attach_headers/a.example.com/match/path/regex",
		`{"match": {"path": {"regex": "^(/v1/|/v2)?[^?]*$"}}, "headers": {"X-A": "1"}}`:                                                              "",
	} {
		rules, err := ParseHeaderRules([]byte(`{"a.example.com": `+doc+`}`), nil)
		if err != nil {
			t.Fatal(doc, err)
		}
		if got := warned(t, Spec{Mode: ModeAllowAll}, rules); got != want {
			t.Errorf("%s: warnings for %q, want %q", doc, got, want)
		}
	}
	first := match.RequestRule{Hosts: []string{"*.example.com"}, Methods: []string{"GET"}, Paths: []string{"/v1/*"}, Action: match.ActionDeny}
	all := match.RequestRule{Hosts: []string{"*.example.com"}, Action: match.ActionAllow}
	for name, c := range map[string]struct {
		rules []match.RequestRule
		want  string
	}{
		"behind a rule for everything":   {[]match.RequestRule{all, {Hosts: []string{"a.example.com"}, Action: match.ActionDeny}}, "/rules/1"},
		"behind a wider rule":            {[]match.RequestRule{first, {Hosts: []string{"a.example.com"}, Methods: []string{"GET"}, Paths: []string{"/v1/a"}, Action: match.ActionAllow}}, "/rules/1"},
		"of more methods":                {[]match.RequestRule{first, {Hosts: []string{"a.example.com"}, Paths: []string{"/v1/a"}, Action: match.ActionAllow}}, ""},
		"of another host":                {[]match.RequestRule{first, {Hosts: []string{"example.com"}, Methods: []string{"GET"}, Paths: []string{"/v1/a"}, Action: match.ActionAllow}}, ""},
		"denying what an allow may miss": {[]match.RequestRule{{Hosts: []string{"*.example.com"}, Methods: []string{"GET"}, Action: match.ActionAllow}, {Hosts: []string{"a.example.com"}, Methods: []string{"GET"}, Action: match.ActionDeny}}, ""},
	} {
		if got := warned(t, Spec{Mode: ModeAllowAll, Rules: c.rules}, nil); got != c.want {
			t.Errorf("%s: warnings for %q, want %q", name, got, c.want)
		}
	}
}

// warned returns the pointers of a policy's warnings.
func warned(t *testing.T, spec Spec, rules []HeaderRule) (got string) {
	t.Helper()
	c, err := Compile(spec, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Warnings() {
		got += p.Pointer
	}
	return got
}

// TestExplain: the explanation lists the missing parts of a request that rules depend on.
func TestExplain(t *testing.T) {
	t.Parallel()
	rules, err := ParseHeaderRules([]byte(`{"a.example.com": [
		{"match": {"query": {"team": {"exact": "red"}}}, "deny": true},
		{"match": {"headers": {"X-Role": {"exact": "ops"}}}, "headers": {"X-A": "1"}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: rules, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	name := mustName(t, "a.example.com")
	at := Request{Stage: StageHTTP, Name: name, Port: 443, Protocol: TCP, Method: "GET", Path: "/"}
	if d := c.Explain(at, false); !d.Unseen.Query || !d.Unseen.Headers {
		t.Errorf("%+v", d)
	}
	at.Fields = match.AllFields([]match.Field{{Name: "X-Role", Value: "dev"}})
	if d := c.Explain(at, true); !d.Allowed() || d.Unseen != (Unseen{}) {
		t.Errorf("%+v", d)
	}
	at.Query = "team=red"
	if d := c.Explain(at, true); d.Allowed() || d.Unseen != (Unseen{}) {
		t.Errorf("%+v", d)
	}
	at.Name = mustName(t, "b.example.com")
	if d := c.Explain(at, false); !d.Allowed() || d.Unseen != (Unseen{}) {
		t.Errorf("%+v", d)
	}
}

// TestExplainAsksForMessages: a decision that depends on messages reports that the body is unknown, and denies.
func TestExplainAsksForMessages(t *testing.T) {
	t.Parallel()
	c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{
		{Hosts: []string{"a.example.com"}, Methods: []string{"POST"}, Match: &match.Match{MCP: &match.MCP{Tools: []string{"search"}}}, Action: "allow"},
		{Hosts: []string{"a.example.com"}, Action: "deny"},
	}}, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	at := Request{Stage: StageHTTP, Name: mustName(t, "a.example.com"), Port: 443, Protocol: TCP, Method: "POST", Path: "/"}
	if d := c.Explain(at, true); d.Allowed() || d.Reason != name.ReasonUnreadableContent || d.Unread != content.MCP || d.Unseen != (Unseen{Body: true}) {
		t.Errorf("%+v", d)
	}
	at.Content = &content.Content{Messages: []content.Message{{Method: content.CallTool, Tool: "search"}}}
	at.Content = at.Content.Unreadable(content.MCP, "")
	if d := c.Explain(at, true); !d.Allowed() || d.Unseen != (Unseen{}) {
		t.Errorf("%+v", d)
	}
	at.Content = at.Content.Unreadable(content.MCP, "flawed")
	if d := c.Explain(at, true); d.Allowed() || d.Reason != name.ReasonUnreadableContent || d.Unread != 0 || d.Flaw != "flawed" {
		t.Errorf("%+v", d)
	}
	at.Method = "GET"
	if d := c.Explain(at, true); d.Reason != name.ReasonRequestRule || d.Unseen != (Unseen{}) {
		t.Errorf("%+v", d)
	}
}

// TestDenialsOfTLSAloneAreWarnedOf: header rules do not apply to plain HTTP, so one that denies or forwards does neither there.
func TestDenialsOfTLSAloneAreWarnedOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host string
		spec Spec
		want bool
	}{
		{"a.test", Spec{Mode: ModeAllowAll}, true},
		{"*.a.test", Spec{Mode: ModeAllowAll}, true},
		{"a.test:8443", Spec{Mode: ModeAllowAll}, false},
		{"a.test", Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test"}}, true},
		{"a.test", Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test:443"}}, false},
		{"a.test", Spec{Mode: ModeCustom, DeniedDomains: []string{"a.test:80"}}, false},
		{"a.test", Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"a.test:80"}, Action: "deny"}}}, false},
	} {
		for _, rule := range []string{`"deny": true`, `"forward_url": "https://proxy.test/"`} {
			c, err := Compile(tt.spec, Options{Version: 1, Headers: mustRules(t, `{"`+tt.host+`": [{"match": {"path": {"prefix": "/x"}}, `+rule+`}]}`), Protected: name.NewProtected(nil, nil)})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(c.Warnings()) > 0; got != tt.want {
				t.Errorf("%s under %+v: %s: %v", tt.host, tt.spec, rule, c.Warnings())
			}
		}
	}
}
