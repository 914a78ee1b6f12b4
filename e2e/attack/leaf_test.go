package attack

import (
	"crypto/tls"
	"net/netip"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// shake makes a TLS handshake with the gateway for a name, independent of DNS, and returns the names in the
// certificate, or nil if there is no certificate.
func shake(in *harness.Intruder, at netip.Addr, sni string) []string {
	in.T.Helper()
	c := in.Dial(netip.AddrPortFrom(at, 443))
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	s := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: in.Roots})
	if err := s.HandshakeContext(in.T.Context()); err != nil {
		return nil
	}
	return s.ConnectionState().PeerCertificates[0].DNSNames
}

// TestAttackLeafForANameOfTheHost tries to make the box's CA sign names that mean another machine or box to other
// clients that trust the CA, by denial pages and by rules that cover any name. The CA signs only names that a server on
// the internet can have.
func TestAttackLeafForANameOfTheHost(t *testing.T) {
	t.Parallel()
	const domain = "preview.example.com"
	w := harness.NewWorld(t, func(c *config.Config) { c.Proxy.Deny, c.Ingress.Domain = "page", domain })
	denied := w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")}))
	open := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"*"}, "rules": []any{map[string]any{"hosts": []string{"*"}, "paths": []string{"/x"}, "action": "deny"}},
	}}))
	hosts := []string{"localhost", "a.localhost", domain, denied.Box + "-8000." + domain}
	made := []string{"router", "printer.local", "api.internal", "x.home.arpa", "1.0.0.127.in-addr.arpa", "x.test", "x.invalid", "x.onion", "x.lan"}
	for _, network := range []string{"ip4", "ip6"} {
		at := denied.Resolve("www.example.com", network)
		for _, label := range append(append([]string{}, hosts...), made...) {
			if got := shake(denied, at, label); got != nil {
				t.Errorf("%s, denied: a page under a certificate for %v", label, got)
			}
			denied.DenialOf(denied.Box, policy.StageConn, label, name.ReasonNotAllowed)
		}
		for _, title := range hosts {
			if got := shake(open, at, title); got != nil {
				t.Errorf("%s, intercepted: a certificate for %v", title, got)
			}
			open.Event(open.Box, func(e audit.Event) bool {
				return e.Stage == policy.StageConn && e.Name == title && e.Verdict == policy.Deny && e.Reason == name.ReasonHostPort
			})
		}
		// The control: names that must work.
		if got := shake(denied, at, "evil.example.net"); len(got) != 1 || got[0] != "evil.example.net" {
			t.Errorf("no page for a public name: %v", got)
		}
		if got := shake(open, at, "api.internal"); len(got) != 1 || got[0] != "api.internal" { // a site may use it internally
			t.Errorf("no interception of a name that is allowed: %v", got)
		}
	}
}
