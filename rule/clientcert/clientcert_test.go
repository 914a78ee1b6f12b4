package clientcert_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// TestClientCertificates: both forms, what is wrong with others, and that the rule alone has TLS terminated.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, `{"a.test": {"client_certificate": {"secret": "both"}},
		"b.test": {"client_certificate": {"certificate": {"secret": "cert"}, "key": {"secret": "key"}}}}`)
	for i, want := range [][2]string{{"both", "both"}, {"cert", "key"}} {
		if of := rules[i].OnConnections().Identity; of.CertificateSource() != want[0] || of.KeySource() != want[1] {
			t.Errorf("%+v, want %v", of, want)
		}
	}
	c, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll}, policy.Options{Version: 1, Headers: rules})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Intercepts(nameOf(t, "a.test"), 443) || c.Intercepts(nameOf(t, "c.test"), 443) {
		t.Error("Intercepts")
	}
	for entry, pointer := range map[string]string{
		`{"client_certificate": "both"}`:                                           "",
		`{"client_certificate": {}}`:                                               "/a.test/client_certificate",
		`{"client_certificate": {"certificate": {"secret": "a"}}}`:                 "/a.test/client_certificate",
		`{"client_certificate": {"certificate": {"secret": "a"}, "key": {}}}`:      "/a.test/client_certificate/key",
		`{"client_certificate": {"certificate": {"secret": "a"}, "key": "b"}}`:     "/a.test/client_certificate/key",
		`{"client_certificate": {"secret": "a", "key": {"secret": "a"}}}`:          "/a.test/client_certificate",
		`{"client_certificate": {"secret": "-----BEGIN PRIVATE KEY----- canary"}}`: "/a.test/client_certificate/secret",
		`{"client_certificate": {"secret": "a", "password": "canary"}}`:            "/a.test/client_certificate/password",
		`{"client_certificate": {"secret": "a"}, "deny": true}`:                    "/a.test/deny",
		`{"client_certificate": {"secret": "a"}, "scrub": true}`:                   "/a.test/scrub",
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		var invalid *document.InvalidError
		if pointer == "" { // a header of that name
			if err != nil {
				t.Errorf("%s: %v", entry, err)
			}
			continue
		}
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != pointer || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

// TestRulesMakeTheSameIdentity: rules that name the same secrets in either form share one parsed certificate, also those of other boxes, and
// requests go on under either. Rules that name others do not.
func TestRulesMakeTheSameIdentity(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, `{"a.test": {"client_certificate": {"secret": "both"}},
		"b.test": {"client_certificate": {"certificate": {"secret": "both"}, "key": {"secret": "both"}}},
		"c.test": {"client_certificate": {"certificate": {"secret": "both"}, "key": {"secret": "other"}}}}`)
	a, b, c := rules[0].OnConnections().Identity, rules[1].OnConnections().Identity, rules[2].OnConnections().Identity
	if of := map[rule.Identity]bool{a: true}; !of[b] || of[c] {
		t.Error("as keys of a map")
	}
	if !rules[0].SendsAlike(&rules[1]) || rules[0].SendsAlike(&rules[2]) || rules[0].SendsAlike(&policy.HeaderRule{}) {
		t.Error("requests that began under one rule")
	}
	if got := strings.Join(append(rules[0].Secrets(), rules[2].Secrets()...), " "); got != "both both other" {
		t.Errorf("the rules use %s", got)
	}
}

// TestNoCertificateIsShown: what is no certificate is refused in words that show nothing of it.
func TestNoCertificateIsShown(t *testing.T) {
	t.Parallel()
	of := rulesOf(t, `{"a.test": {"client_certificate": {"secret": "both"}}}`)[0].OnConnections().Identity
	for _, text := range []string{"", "canary", "-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY canary-----\n"} {
		secret := name.NewSecret(text)
		if pair, err := of.Certificate(secret, secret); err == nil || strings.Contains(err.Error(), "canary") || pair.Leaf != (tls.Certificate{}).Leaf {
			t.Errorf("%q: %v", text, err)
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
