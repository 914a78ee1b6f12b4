package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"boxgate/fleet"
)

// Files of a server with TLS, in its directory. Those of server and client have certificate and key.
const (
	caFile     = "ca.pem"
	serverFile = "server.pem"
	clientFile = "client.pem"
)

// Access is the way to the listener with TLS, with the certificate of a client.
func (s *Server) Access() fleet.Access {
	file := func(name string) string { return filepath.Join(s.dir, name) }
	return fleet.Access{Endpoints: []string{"https://" + s.tls}, CAFile: file(caFile), CertFile: file(clientFile), KeyFile: file(clientFile)}
}

// writeCertificates makes an authority, and certificates of the server and of a client.
func (s *Server) writeCertificates(address string) {
	s.t.Helper()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		s.t.Fatal(err)
	}
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	}
	root := template("etcd CA")
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	rootKey := s.newKey()
	s.write(caFile, s.sign(root, root, &rootKey.PublicKey, rootKey), nil)
	for file, usage := range map[string]x509.ExtKeyUsage{serverFile: x509.ExtKeyUsageServerAuth, clientFile: x509.ExtKeyUsageClientAuth} {
		leaf, key := template(file), s.newKey()
		leaf.ExtKeyUsage, leaf.IPAddresses = []x509.ExtKeyUsage{usage}, []net.IP{net.ParseIP(host)}
		s.write(file, s.sign(leaf, root, &key.PublicKey, rootKey), key)
	}
}

func (s *Server) newKey() *ecdsa.PrivateKey {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	return key
}

func (s *Server) sign(leaf, root *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) []byte {
	s.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, leaf, root, public, by)
	if err != nil {
		s.t.Fatal(err)
	}
	return der
}

func (s *Server) write(name string, certificate []byte, key *ecdsa.PrivateKey) {
	s.t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	if key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			s.t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), text, 0o600); err != nil {
		s.t.Fatal(err)
	}
}
