package rootfs

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/launcher/launchertest"
)

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
		certPEM, _ := launchertest.Certificate(t, subject, nil, nil)
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
	f.Add(launchertest.CA(f))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := parseCA(data)
		if err == nil && len(bytes.TrimSpace(data)) > 0 && len(certs) == 0 {
			t.Error("something was accepted as no certificate")
		}
	})
}
