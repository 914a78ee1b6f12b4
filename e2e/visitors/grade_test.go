package visitors

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"boxgate/internal/nightly"
)

// graded are checks of testssl.sh with findings that the gateway cannot change.
var graded = map[string]string{
	"engine_problem":        "the openssl that testssl.sh uses has no GOST",
	"cert_revocation":       "the internal CA publishes neither a CRL nor OCSP: its leaves are short-lived",
	"cert_expirationStatus": "leaves of the internal CA last for a month",
	"cert_notAfter":         "the same",
	"DNS_CAArecord":         "the domain of the test has no CAA record",
	"security_headers":      "headers of the application",
	"TLS_session_ticket":    "crypto/tls hints at a week in TLS 1.2; a key that opens tickets is thrown away after a day",
}

// testssl.sh finds no problems in the TLS of a public URL except those explained above.
func TestTLSIsGraded(t *testing.T) {
	if !full {
		nightly.Only(t) // a minute of handshakes
	}
	t.Parallel()
	s := newSite(t, respond("text/plain", "hello"), map[string]any{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	home := t.TempDir()
	report := filepath.Join(home, "report.json")
	argv := []string{
		"TESTSSL_INSTALL_DIR=" + filepath.Join(unpacked, "etc/testssl"), "testssl", "--ip", s.gateway, "--openssl", "/usr/bin/openssl",
		"--add-ca", s.roots, "--warnings", "off", "--color", "0", "--quiet", "--jsonfile", report,
	}
	if !full {
		argv = append(argv, "-p", "-s", "-f", "-S", "-h", "-U") // without every cipher and every client
	}
	out, err := s.run(ctx, home, append(argv, s.host)...)
	data, readErr := os.ReadFile(report)
	if readErr != nil {
		t.Fatalf("testssl.sh: %v\n%s", err, out)
	}
	var findings []struct{ ID, Severity, Finding string }
	if err := json.Unmarshal(data, &findings); err != nil {
		t.Fatal(err)
	}
	good := 0
	for _, f := range findings {
		switch {
		case f.Severity == "OK":
			good++
		case f.Severity != "INFO" && graded[f.ID] == "":
			t.Errorf("%s: %s: %s", f.Severity, f.ID, f.Finding)
		}
	}
	if !slices.ContainsFunc(findings, func(f struct{ ID, Severity, Finding string }) bool { return f.ID == "TLS1_3" && f.Severity == "OK" }) || good < 30 {
		t.Errorf("testssl.sh has seen little of the server: %v\n%s", err, out)
	}
	if full {
		t.Log(out)
	}
}
