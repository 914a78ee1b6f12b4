package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestIssuedRenews(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "internal")
	s, err := NewIssued(ca, "*.preview.localhost", "preview.localhost")
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Leaf.VerifyHostname("3000-abc.preview.localhost"); err != nil {
		t.Error(err)
	}
	s.now = func() time.Time { return time.Now().Add(19 * 24 * time.Hour) }
	if again, _ := s.GetCertificate(nil); again != first {
		t.Error("replaced eleven days before its end")
	}
	s.now = func() time.Time { return time.Now().Add(21 * 24 * time.Hour) }
	if again, _ := s.GetCertificate(nil); again == first {
		t.Error("not replaced nine days before its end")
	}
}

// A custom domain of a URL has its own certificate for as long as the URL has it; no other name does.
func TestDomainsServeThoseOfURLs(t *testing.T) {
	t.Parallel()
	served := map[string]bool{"app.example.org": true, "id-80.preview.localhost": true}
	d, err := NewDomains(newCA(t, "internal"), func(host string) bool { return served[host] }, "*.preview.localhost")
	if err != nil {
		t.Fatal(err)
	}
	names := func(host string) string {
		cert, err := d.GetCertificate(&tls.ClientHelloInfo{ServerName: host})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(cert.Leaf.DNSNames, " ")
	}
	for host, want := range map[string]string{
		"app.example.org": "app.example.org", "APP.Example.org": "app.example.org", "www.example.org": "*.preview.localhost",
		"id-80.preview.localhost": "*.preview.localhost", "": "*.preview.localhost", "192.0.2.1": "*.preview.localhost",
	} {
		if got := names(host); got != want {
			t.Errorf("%q: the certificate of %s, want that of %s", host, got, want)
		}
	}
	delete(served, "app.example.org")
	served["www.example.org"] = true
	if got := names("app.example.org"); got != "*.preview.localhost" {
		t.Error("the domain of a URL that is gone has the certificate of", got)
	}
	if names("www.example.org"); len(d.custom) != 1 {
		t.Errorf("%d domains are remembered, one is served", len(d.custom))
	}
}

func TestIssuedNeedsANameNow(t *testing.T) {
	t.Parallel()
	if _, err := NewIssued(newCA(t, "internal")); err == nil {
		t.Error("no error for no name")
	}
}

// TestFilesFollowChanges replaces the pair in two steps, like a renewal: in between the files do not match.
func TestFilesFollowChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca := newCA(t, "public")
	put := func(path string, text []byte, when time.Time) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(name string) (cert, key []byte) {
		c, err := ca.ServerCertificate(name)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return pemOf(c), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	start := time.Now().Add(-time.Hour)
	cert, key := pair("one.example.com")
	put(certFile, cert, start)
	put(keyFile, key, start)
	failures := 0
	f, err := NewFiles(certFile, keyFile, func(error) { failures++ })
	if err != nil {
		t.Fatal(err)
	}
	served := func() *tls.Certificate {
		f.mu.Lock()
		f.checkedAt = time.Time{} // as if a second had passed
		f.mu.Unlock()
		c, err := f.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	expect := func(name string) {
		t.Helper()
		leaf, err := x509.ParseCertificate(served().Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	expect("one.example.com")
	cert, key = pair("two.example.com")
	put(certFile, cert, start.Add(time.Minute))
	expect("one.example.com")
	expect("one.example.com")
	if failures != 1 {
		t.Errorf("%d failures reported for one broken version, want 1", failures)
	}
	put(keyFile, key, start.Add(time.Minute))
	expect("two.example.com")
}

func TestFilesMustLoadAtStart(t *testing.T) {
	t.Parallel()
	if _, err := NewFiles("/nonexistent/cert.pem", "/nonexistent/key.pem", nil); err == nil {
		t.Error("no error")
	}
}
