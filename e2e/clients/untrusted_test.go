package clients

import (
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestClientsThatDoNotTrustTheCA: clients that do not trust the box's CA abort the handshake in different ways, and the
// log explains each one and its fix.
func TestClientsThatDoNotTrustTheCA(t *testing.T) {
	t.Parallel()
	w, _, _ := newClients(t)
	const store = "/etc/ssl/certs/ISRG_Root_X1.pem"
	for label, line := range map[string]string{
		"curl":    "curl -sS --capath /nowhere --cacert " + store + " https://HOST/",
		"TLS 1.2": "curl -sS --tls-max 1.2 --capath /nowhere --cacert " + store + " https://HOST/",
		"wget":    "wget -q -O- --ca-directory=/nowhere --ca-certificate=" + store + " https://HOST/",
		"python":  `python3 -c 'import ssl, urllib.request as u; u.urlopen("https://HOST/", context=ssl.create_default_context(cafile="` + store + `"))'`,
		"node":    "NODE_EXTRA_CA_CERTS= node --use-bundled-ca -e 'fetch(\"https://HOST/\").then(r => r.text())'",
		"openssl": "openssl s_client -verify_return_error -CAfile " + store + " -no-CApath -no-CAstore -servername HOST -connect HOST:443 </dev/null",
		"gnutls":  "gnutls-cli --x509cafile=" + store + " HOST </dev/null",
	} {
		box := w.Create(map[string]any{
			"runtime": "clients", "network_policy": harness.Custom(shopHost), "attach_headers": map[string]any{shopHost: map[string]string{"X-Key": harness.Canary}},
		})
		if out, code := w.Sh(box, strings.ReplaceAll(line, "HOST", shopHost)+" 2>&1"); code == 0 {
			t.Errorf("%s trusts the CA: %s", label, out)
			continue
		}
		w.Event(box, func(e audit.Event) bool {
			known := e.Reason == name.ReasonClientTLS || label == "wget" && e.Stage == policy.StageConn // wget completes the handshake
			return known && strings.Contains(e.Error, "does not trust the box's CA") && strings.Contains(e.Error, "gateway ca")
		})
	}
}
