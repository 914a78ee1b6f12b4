package upstream_test

import (
	"errors"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
)

// TestLogins: a login is for proxies of its scheme alone, which is https unless it says otherwise, and applies to no request.
func TestLogins(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test:3128": {"proxy": {"username": "u", "password": "canary"}},
		"b.test:443": {"proxy": {"scheme": "http", "username": "v", "password": {"secret": "s"}}},
		"c.test:1080": {"proxy": {"scheme": "socks5", "username": "w", "password": {"secret": "s"}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ scheme, user, source string }{{"https", "u", ""}, {"http", "v", "s"}, {"socks5", "w", "s"}} {
		l := rules[i].OnConnections().Proxy
		if l.Username() != want.user || l.Password().Source != want.source || strings.Join(rules[i].Secrets(), " ") != want.source || rules[i].Applies() {
			t.Errorf("%+v, want %+v", l, want)
		}
		for _, scheme := range []string{"https", "http", "socks5", ""} {
			if l.IsFor(scheme) != (scheme == want.scheme) {
				t.Errorf("the login for %s is for %q: %v", want.scheme, scheme, l.IsFor(scheme))
			}
		}
	}
}

// TestMistakes: each is named at its place, in words that show no password.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ host, entry, at, says string }{
		{"a.test:3128", `{"proxy": 1}`, "/proxy", "want an object of username and password"},
		{"a.test:3128", `{"proxy": {"password": "canary"}}`, "/proxy/username", "is missing"},
		{"a.test:3128", `{"proxy": {"username": "u"}}`, "/proxy/password", "is missing"},
		{"a.test:3128", `{"proxy": {"username": "u:v", "password": "canary"}}`, "/proxy/username", "has a colon"},
		{"a.test:3128", `{"proxy": {"username": "` + strings.Repeat("u", 256) + `", "password": "canary"}}`, "/proxy/username", "longer than 255 bytes"},
		{"a.test:3128", `{"proxy": {"username": "u", "password": ""}}`, "/proxy/password", "is empty"},
		{"a.test:3128", `{"proxy": {"username": "u", "password": "canary` + strings.Repeat("c", 250) + `"}}`, "/proxy/password", "longer than 255 bytes"},
		{"a.test:3128", `{"proxy": {"username": "u", "password": "canary", "scheme": "ftp"}}`, "/proxy/scheme", `use "https", "http" or "socks5"`},
		{"a.test:3128", `{"proxy": {"username": "u", "password": "canary"}, "deny": true}`, "", "has a login, which stands alone"},
		{"a.test", `{"proxy": {"username": "u", "password": "canary"}}`, "", `as in "a.test:3128"`},
		{"*.a.test:3128", `{"proxy": {"username": "u", "password": "canary"}}`, "", "is a wildcard"},
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"`+tt.host+`": `+tt.entry+`}`), nil)
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != "/"+tt.host+tt.at || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %s: %v", tt.host, tt.entry, err)
		}
	}
}
