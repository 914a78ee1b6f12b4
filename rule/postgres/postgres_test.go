package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/rule"
	"boxgate/rule/postgres"
)

const whole = `{"user": "u", "database": "d", "password": "canary"}`

// TestLogins: what a login is, as whom the log names it, and which secret it needs.
func TestLogins(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test:5432": {"postgres": `+whole+`},
		"b.test:6432": {"postgres": {"user": "u@x", "database": "d/e", "password": {"secret": "s"}, "auth": "md5"}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		auth                 postgres.Auth
		url, source, secrets string
	}{{postgres.SCRAM, "postgres://u@h:1/d", "", ""}, {postgres.MD5, "postgres://u%40x@h:1/d/e", "s", "s"}} {
		l, ok := rules[i].OnConnections().Login.(*postgres.Login)
		if !ok || l.Auth != want.auth || l.URL("h:1") != want.url || rule.LoginSource(l) != want.source || strings.Join(rules[i].Secrets(), " ") != want.secrets || !rules[i].Applies() {
			t.Errorf("%+v, want %+v", l, want)
		}
	}
}

// TestWhatChangesALogin: a connection that one login began goes on under another that is the same in all, and under no other.
func TestWhatChangesALogin(t *testing.T) {
	t.Parallel()
	of := func(entry string) *policy.HeaderRule {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.test:5432": `+entry+`}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		return &rules[0]
	}
	login := of(`{"postgres": ` + whole + `}`)
	if !login.SendsAlike(of(`{"postgres": {"password": {"value": "canary"}, "auth": "scram-sha-256", "user": "u", "database": "d"}}`)) {
		t.Error("the same login is another")
	}
	for _, entry := range []string{
		`{"postgres": {"user": "v", "database": "d", "password": "canary"}}`, `{"postgres": {"user": "u", "database": "e", "password": "canary"}}`,
		`{"postgres": {"user": "u", "database": "d", "password": "other"}}`, `{"postgres": {"user": "u", "database": "d", "password": {"secret": "canary"}}}`,
		`{"postgres": {"user": "u", "database": "d", "password": "canary", "auth": "password"}}`, `{"proxy": {"username": "u", "password": "canary"}}`, `{}`,
	} {
		if login.SendsAlike(of(entry)) {
			t.Errorf("%s is the same login", entry)
		}
	}
}

// TestMistakes: each is named at its place, in words that show no password.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ host, entry, at, says string }{
		{"a.test:5432", `{"postgres": 1}`, "/postgres", "want an object of user, database and password"},
		{"a.test:5432", `{"postgres": {"database": "d", "password": "canary"}}`, "/postgres/user", "is missing"},
		{"a.test:5432", `{"postgres": {"user": "u", "password": "canary"}}`, "/postgres/database", "is missing"},
		{"a.test:5432", `{"postgres": {"user": "u", "database": "d"}}`, "/postgres/password", "is missing"},
		{"a.test:5432", `{"postgres": {"user": "", "database": "d", "password": "canary"}}`, "/postgres/user", "is empty or longer than 256 bytes"},
		{"a.test:5432", `{"postgres": {"user": "u", "database": "d\n", "password": "canary"}}`, "/postgres/database", "has a control character"},
		{"a.test:5432", `{"postgres": {"user": "u", "database": "d", "password": ""}}`, "/postgres/password", "is empty"},
		{"a.test:5432", `{"postgres": {"user": "u", "database": "d", "password": {"secret": "s", "prefix": "canary"}}}`, "/postgres/password/prefix", "unknown key"},
		{"a.test:5432", `{"postgres": {"user": "u", "database": "d", "password": "canary", "auth": "trust"}}`, "/postgres/auth", `use "scram-sha-256", "password" or "md5"`},
		{"a.test:5432", `{"postgres": ` + whole + `, "scrub": true}`, "", "has a login, which stands alone"},
		{"a.test:5432", `[{"postgres": ` + whole + `}]`, "/0", "has no alternatives"},
		{"a.test", `{"postgres": ` + whole + `}`, "", `as in "a.test:5432"`},
		{"*.a.test:5432", `{"postgres": ` + whole + `}`, "", "is a wildcard; a login is for one host"},
		{"a.test:443", `{"postgres": ` + whole + `}`, "", "has a port of HTTP or DNS"},
		{"a.test:853", `{"postgres": ` + whole + `}`, "", "has a port of HTTP or DNS"},
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"`+tt.host+`": `+tt.entry+`}`), nil)
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != "/"+tt.host+tt.at || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %s: %v", tt.host, tt.entry, err)
		}
	}
}
