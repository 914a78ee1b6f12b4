package launcher

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// The CA is believed by real clients, over real TLS, next to the public roots.
func TestClientsInTheBoxTrustItsCA(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	ca, server := testChain(t, "shop.example")
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	if err := inNetNS(l.dirs.pin(id), func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	if r := rootSh(t, l, id, "echo 127.0.0.1 shop.example >> /etc/hosts"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "cat > server.pem; echo hello > page"}, Stdin: bytes.NewReader(server)}), "")
	want(t, sh(t, l, id, `cat > server.py <<'.'
import http.server, ssl, socketserver
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain("server.pem")
socketserver.ThreadingTCPServer.daemon_threads = True
s = socketserver.ThreadingTCPServer(("127.0.0.1", 443), http.server.SimpleHTTPRequestHandler)
s.socket = c.wrap_socket(s.socket, server_side=True)
open("up", "w").close()
s.serve_forever()
.
python3 server.py >log 2>&1 & until [ -e up ]; do sleep 0.01; done; echo up`), "up")
	for client, script := range map[string]string{
		"curl":                   "curl -sS https://shop.example/page",
		"curl, store only":       "env -i curl -sS https://shop.example/page",
		"python":                 `python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"python, store only":     `env -i python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"node":                   `node -e 'require("https").get("https://shop.example/page", r => r.pipe(process.stdout))'`,
		"openssl, by the bundle": `echo | openssl s_client -verify_return_error -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"openssl, by the hash":   `echo | env -u SSL_CERT_FILE openssl s_client -verify_return_error -no-CAfile -CApath /etc/ssl/certs -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"git":                    `git -c http.followRedirects=false ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
		"git, store only":        `env -i git ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
	} {
		t.Run(client, func(t *testing.T) { want(t, sh(t, l, id, script), "hello") })
	}
	public := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE")
	if len(strings.TrimSpace(public.out)) < 3 {
		t.Errorf("the bundle holds no public roots: %s certificates", public.out)
	}
	for _, name := range trustVariables {
		want(t, sh(t, l, id, "echo $"+name), bundlePath)
	}
	// A box that rebuilds its store keeps its CA.
	if r := rootSh(t, l, id, "update-ca-certificates >/dev/null 2>&1; env -i curl -sS https://shop.example/page"); strings.TrimSpace(r.out) != "hello" {
		t.Errorf("after update-ca-certificates: %+v", r)
	}
}

func TestBoxWithoutCAHasPublicRoots(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, func(s *Spec) { s.CA = nil })
	r := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE; ls /etc/ssl/certs/boxgate* /usr/local/share/ca-certificates/boxgate.crt 2>/dev/null")
	if f := strings.Fields(r.out); len(f) != 1 || len(f[0]) < 3 {
		t.Errorf("%+v", r)
	}
}

func TestSubjectHashIsOpenSSLs(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Fatal("openssl is missing: apt-get install openssl")
	}
	for _, subject := range []pkix.Name{
		{CommonName: "boxgate"},
		{CommonName: "  Two  Words\t", Organization: []string{"UPPER lower", "Second"}, Country: []string{"DE"}},
		{CommonName: "Grüße Ω", Locality: []string{"São Paulo"}},
		{CommonName: "a*b@c", SerialNumber: "0042"},
		{},
	} {
		file := filepath.Join(t.TempDir(), "c.pem")
		certPEM, _ := certificate(t, subject, nil, nil)
		if err := os.WriteFile(file, certPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("openssl", "x509", "-noout", "-hash", "-in", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(certPEM)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		got, err := subjectHash(c.RawSubject)
		if expect := strings.TrimSpace(string(out)); err != nil || fmt.Sprintf("%08x", got) != expect {
			t.Errorf("%v: %08x, want %s (%v)", subject, got, expect, err)
		}
	}
}

func FuzzSubjectHash(f *testing.F) {
	for _, seed := range []string{"", "0\x00", "0\x0f1\r0\v\x06\x03U\x04\x03\f\x04test", "0\x80"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, der []byte) { _, _ = subjectHash(der) }) // must not panic
}

func FuzzParseCA(f *testing.F) {
	f.Add(testCA(f))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := parseCA(data)
		if err == nil && len(bytes.TrimSpace(data)) > 0 && len(certs) == 0 {
			t.Error("something was accepted as no certificate")
		}
	})
}

// testChain returns a CA and a server's certificate with its key.
func testChain(t *testing.T, host string) (ca, server []byte) {
	t.Helper()
	caPEM, caKey := certificate(t, pkix.Name{CommonName: "Boxgate  Test CA ", Organization: []string{"Maple & Co"}}, nil, nil)
	block, _ := pem.Decode(caPEM)
	parent, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	leaf, key := certificate(t, pkix.Name{CommonName: host}, parent, caKey)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return caPEM, append(leaf, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}

// certificate makes a CA's certificate, or with a parent a server's.
func certificate(t testing.TB, subject pkix.Name, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	} else {
		template.DNSNames = []string{subject.CommonName}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// testCA returns a CA's certificate.
func testCA(t testing.TB) []byte {
	ca, _ := certificate(t, pkix.Name{CommonName: "Test CA"}, nil, nil)
	return ca
}
