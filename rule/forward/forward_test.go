package forward_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/forward"
)

// TestForwardURLs: what is a URL to forward to, what it becomes, and what is none; errors quote nothing.
func TestForwardURLs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://Proxy.test":                              "https://proxy.test",
		"https://proxy.test/":                             "https://proxy.test",
		"https://proxy.test:443/api/proxy/":               "https://proxy.test/api/proxy",
		"https://proxy.test:8443/a.b":                     "https://proxy.test:8443/a.b",
		"http://proxy.test":                               "",
		"proxy.test":                                      "",
		"https://":                                        "",
		"https://user:canary@proxy.test":                  "",
		"https://proxy.test?canary=1":                     "",
		"https://proxy.test/?":                            "",
		"https://proxy.test/#canary":                      "",
		"https://proxy.test/#":                            "",
		"https://10.0.0.1/":                               "",
		"https://[::1]/":                                  "",
		"https://proxy.test:0/":                           "",
		"https://proxy.test:/":                            "",
		"https://proxy.test:65536/":                       "",
		"https://proxy.test/a/../b":                       "",
		"https://proxy.test//a":                           "",
		"https://proxy.test/a%2fb":                        "",
		"https://proxy.test/a;b":                          "",
		"https://*.proxy.test/":                           "",
		"https://proxy.test/\r\nX-Canary: 1":              "",
		"https:proxy.test":                                "",
		"https://proxy.test/" + strings.Repeat("a", 4096): "",
	} {
		f, err := parse(text)
		switch {
		case want == "" && (f != nil || err == nil || strings.Contains(err.Error(), "anary")):
			t.Errorf("%s: %+v, %v", text, f, err)
		case want != "" && (err != nil || f.URL() != want):
			t.Errorf("%s: %v, %v", text, f, err)
		}
	}
	f, _ := parse("https://proxy.test:8443/in")
	if f.Authority() != "proxy.test:8443" || f.Target("/a?b=c") != "/in/a?b=c" || f.Target("*") != "/in/" {
		t.Errorf("%s %s %s", f.Authority(), f.Target("/a?b=c"), f.Target("*"))
	}
}

// parse reads the URL as the member of a rule.
func parse(text string) (rule.Redirect, error) {
	var c rule.Context
	to, _ := forward.Kind{}.Parse("", document.Value{Kind: document.Text, Text: text}, &c).(rule.Redirect)
	return to, c.Err()
}

// TestForwardRules: nothing that sends values stands beside forward_url, and the URL is shown by no error.
func TestForwardRules(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, `{"a.test": {"forward_url": "https://proxy.test", "headers": {}, "remove": ["X-A"], "client_certificate": {"secret": "c"}}}`)
	if !rules[0].Applies() || rules[0].OnConnections().Redirect.URL() != "https://proxy.test" {
		t.Errorf("%+v", rules[0])
	}
	for entry, at := range map[string]string{
		`{"forward_url": "https://proxy.test", "headers": {"X-A": "canary"}}`:      "/a.test/forward_url",
		`{"forward_url": "https://proxy.test", "placeholders": {"KEY": "canary"}}`: "/a.test/forward_url",
		`{"forward_url": "https://proxy.test", "headers": {}, "deny": true}`:       "/a.test/deny",
		`{"forward_url": "https://u:canary@proxy.test", "headers": {}}`:            "/a.test/forward_url",
		`{"forward_url": 1}`: "/a.test/forward_url",
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != at || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

// TestForwardingPolicy: proxies are reached where the ranges for them are not protected and the ceiling allows it, whatever
// the box may reach; without a rule that forwards, nothing is.
func TestForwardingPolicy(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, `{"a.test": {"headers": {}, "forward_url": "https://proxy.test"}}`)
	exempt := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	protected := name.NewProtected(nil, nil).WithForwarding(name.NewProtected(exempt, nil))
	ceiling, err := policy.NewCeiling(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.test", "listed.test"}})
	if err != nil {
		t.Fatal(err)
	}
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.test"}}
	c, err := policy.Compile(spec, policy.Options{Version: 1, Headers: rules, Protected: protected})
	under, errUnder := policy.Compile(spec, policy.Options{Version: 1, Headers: rules, Protected: protected, Ceiling: ceiling})
	none, errNone := policy.Compile(spec, policy.Options{Version: 1, Protected: protected})
	if err := errors.Join(err, errUnder, errNone); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		c          *policy.Compiled
		name, addr string
		allowed    bool
	}{
		{c, "proxy.test", "8.8.8.8", true}, {c, "proxy.test", "10.9.1.1", true}, {c, "proxy.test", "10.8.1.1", false},
		{c, "proxy.test", "169.254.169.254", false}, {c, "proxy.test", "127.0.0.1", false},
		{under, "proxy.test", "8.8.8.8", false}, {under, "listed.test", "8.8.8.8", true}, {under, "listed.test", "10.8.1.1", false},
		{none, "proxy.test", "8.8.8.8", false}, {nil, "proxy.test", "8.8.8.8", false},
	} {
		r := policy.Request{Stage: policy.StageDial, Name: nameOf(t, test.name), Addr: netip.MustParseAddr(test.addr), Port: 443, Protocol: policy.TCP}
		if got := test.c.Forwarding().Decide(r); got.Allowed() != test.allowed {
			t.Errorf("%s at %s: %+v", test.name, test.addr, got)
		}
		if test.c.Decide(r).Allowed() && test.name != "listed.test" {
			t.Errorf("the box reaches %s at %s", test.name, test.addr)
		}
	}
}

func rulesOf(t testing.TB, doc string) []policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(doc), nil)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func nameOf(t testing.TB, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
