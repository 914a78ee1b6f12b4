package fidelity

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestFidelityClientsOfRSAAlone: clients in a box that accept only RSA certificates.
func TestFidelityClientsOfRSAAlone(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	for _, r := range intercepted {
		for _, options := range []string{"", "--tls-max 1.2 --ciphers ECDHE-RSA-AES128-GCM-SHA256"} {
			if out := f.curl(r, options, "/page"); out != "page" {
				t.Errorf("%s %s: %q", r.name, options, out)
			}
		}
	}
	out := f.run("openssl s_client -brief -verify_return_error -sigalgs rsa_pss_rsae_sha256:RSA+SHA256 -connect " + bothHost + ":443 -servername " + bothHost + " 2>&1 < /dev/null")
	if !strings.Contains(out, "Verification: OK") || !strings.Contains(out, "RSA-PSS") {
		t.Errorf("openssl: %s", out)
	}
}
