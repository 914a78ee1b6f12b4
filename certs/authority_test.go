package certs

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/policy/name"
)

func newCA(t *testing.T, name string) *Authority {
	t.Helper()
	ca, err := NewCA(name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustName(t *testing.T, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAuthoritySurvivesTheStore(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "box one")
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadCA(ca.CertificatePEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.CertificatePEM(), ca.CertificatePEM()) {
		t.Error("the certificate changed on its way through PEM")
	}
	leaf, err := again.ServerCertificate("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if err := leaf.Leaf.CheckSignatureFrom(ca.Certificate()); err != nil {
		t.Error(err)
	}
}

func TestKeyIsNeverPrinted(t *testing.T) {
	t.Parallel()
	key, err := newCA(t, "box").KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%s", "%q", "%#v"} {
		if got := fmt.Sprintf(verb, key); strings.Contains(got, "PRIVATE") {
			t.Errorf("%s prints the key", verb)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	one, two := newCA(t, "one"), newCA(t, "two")
	key, err := two.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := one.ServerCertificate("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	notCA := pemOf(leaf)
	for label, try := range map[string]struct {
		cert []byte
		key  name.Secret
	}{
		"another authority's key": {one.CertificatePEM(), key},
		"no certificate":          {nil, key},
		"no key":                  {one.CertificatePEM(), name.Secret{}},
		"a leaf":                  {notCA, key},
		"garbage":                 {[]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), key},
	} {
		if ca, err := LoadCA(try.cert, try.key); err == nil || ca != nil {
			t.Errorf("%s: loaded", label)
		}
	}
}

// TestOpenSSLVerifies checks with another implementation that chain, name and purpose are accepted, and all others
// refused.
func TestOpenSSLVerifies(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t, "box one"), newCA(t, "box two")
	leaf, err := ca.ServerCertificate("api.example.com", "*.preview.localhost", "192.0.2.7")
	if err != nil {
		t.Fatal(err)
	}
	root, foreign := write(t, "ca.pem", ca.CertificatePEM()), write(t, "other.pem", other.CertificatePEM())
	cert := write(t, "leaf.pem", pemOf(leaf))
	for _, try := range []struct {
		root, flag, name string
		ok               bool
	}{
		{root, "-verify_hostname", "api.example.com", true},
		{root, "-verify_hostname", "3000-abc.preview.localhost", true},
		{root, "-verify_ip", "192.0.2.7", true},
		{root, "-verify_hostname", "example.com", false},
		{root, "-verify_hostname", "evil.example.com", false},
		{root, "-verify_ip", "192.0.2.8", false},
		{foreign, "-verify_hostname", "api.example.com", false},
	} {
		out, err := exec.Command("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-no-CApath",
			"-CAfile", try.root, try.flag, try.name, cert).CombinedOutput()
		if (err == nil) != try.ok {
			t.Errorf("%s %s: openssl said %q, want accepted=%v", try.flag, try.name, out, try.ok)
		}
	}
}

// TestCurlTrustsTheLeaf performs the handshake of a box.
func TestCurlTrustsTheLeaf(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "box")
	var m Minter
	if err := m.Add("b", ca); err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			n, err := name.Parse(h.ServerName)
			if err != nil {
				return nil, err
			}
			return m.Leaf(h.Context(), "b", n)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	root := write(t, "ca.pem", ca.CertificatePEM())
	out, err := exec.Command("curl", "-sS", "--noproxy", "*", "--max-time", "20", "--cacert", root,
		"--resolve", "api.example.com:"+port+":127.0.0.1", "https://api.example.com:"+port+"/").CombinedOutput()
	if err != nil || string(out) != "hello" {
		t.Fatalf("curl: %v: %s", err, out)
	}
}
