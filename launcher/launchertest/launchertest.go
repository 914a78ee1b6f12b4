// Package launchertest creates archives and certificates for tests.
package launchertest

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// Archive returns a tar of entries. Their sizes are set from the contents.
func Archive(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.Size = int64(len(e.Content))
		h.ModTime = time.Unix(1_000_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.Content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Entry is one entry of an archive.
type Entry struct {
	tar.Header
	Content string
}

// File returns an entry for a file.
func File(name, content string) Entry { return Entry{tar.Header{Name: name}, content} }

// Dir returns an entry for a directory.
func Dir(name string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

// Link returns an entry for a symbolic link.
func Link(name, target string) Entry {
	return Entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}, ""}
}

// Hardlink returns an entry for another name of a file.
func Hardlink(name, target string) Entry {
	return Entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}, ""}
}

// Certificate creates a CA certificate, or a server certificate if parent is not nil.
func Certificate(t testing.TB, subject pkix.Name, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
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

// CA returns a CA certificate.
func CA(t testing.TB) []byte {
	ca, _ := Certificate(t, pkix.Name{CommonName: "Test CA"}, nil, nil)
	return ca
}
