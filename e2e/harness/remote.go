package harness

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"boxgate/certs"
	"boxgate/config"
)

// The address of the remote listener of [Remote] in the gateway's network namespace, and the name in its certificate.
const (
	RemoteAt   = "127.0.0.1:8443"
	RemoteName = "gate.example.org"
)

// Remote returns the configuration of a listener for boxes elsewhere, and the file of the CA of its certificate.
func Remote(t *testing.T) (listener config.Remote, ca string) {
	t.Helper()
	authority, err := certs.NewCA("remote boxes")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.ServerCertificate(RemoteName)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	var chain []byte
	for _, der := range leaf.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	listener.Listen = RemoteAt
	listener.TLS.Cert = write("cert.pem", chain)
	listener.TLS.Key = write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	return listener, write("ca.pem", authority.CertificatePEM())
}
