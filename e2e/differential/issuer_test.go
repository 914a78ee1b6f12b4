package differential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
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
)

// issuer creates the certificates of the servers: a root that clients and gateway trust, an intermediate below it, and
// an old, expired root that neither trusts.
type issuer struct {
	t              *testing.T
	root, mid, old *authority
	rsa            map[string]crypto.Signer // keys that take long to generate, shared by several servers
}

// authority is a certificate that signs others.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t, rsa: map[string]crypto.Signer{}}
	i.root = i.authority("Root", i.key("p256"), nil, nil)
	i.mid = i.authority("Intermediate", i.key("p256"), i.root, nil)
	i.old = i.authority("Old Root", i.key("p256"), nil, expired)
	return i
}

// authority creates a certificate authority, below another one or self-signed.
func (i *issuer) authority(name string, key crypto.Signer, above *authority, edit func(*certSpec)) *authority {
	i.t.Helper()
	o := i.newSpec(name)
	o.DNSNames, o.ExtKeyUsage = nil, nil
	o.IsCA, o.BasicConstraintsValid, o.KeyUsage = true, true, x509.KeyUsageCertSign
	if edit != nil {
		edit(o)
	}
	if above == nil {
		above = &authority{&o.Certificate, key}
	}
	return &authority{i.sign(o, key.Public(), above), key}
}

// certSpec is a certificate to create. Its fields have the usual values until a row edits them.
type certSpec struct {
	x509.Certificate
	issuer *issuer
	kind   string       // kind of the key
	below  *authority   // issuer; nil: self-signed
	sends  []*authority // additional certificates sent by the server
}

func (i *issuer) newSpec(host string) *certSpec {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		i.t.Fatal(err)
	}
	now := time.Now()
	return &certSpec{issuer: i, kind: "p256", below: i.mid, sends: []*authority{i.mid}, Certificate: x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}}
}

func (i *issuer) sign(o *certSpec, public crypto.PublicKey, by *authority) *x509.Certificate {
	i.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &o.Certificate, by.cert, public, by.key)
	if err != nil {
		i.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return made
}

// chain returns the certificate chain of the server at a host.
func (i *issuer) chain(host string, edit func(*certSpec)) tls.Certificate {
	i.t.Helper()
	o := i.newSpec(host)
	if edit != nil {
		edit(o)
	}
	key := i.key(o.kind)
	below := o.below
	if below == nil {
		below = &authority{&o.Certificate, key}
	}
	out := tls.Certificate{PrivateKey: key, Certificate: [][]byte{i.sign(o, key.Public(), below).Raw}}
	for _, a := range o.sends {
		out.Certificate = append(out.Certificate, a.cert.Raw)
	}
	return out
}

// key generates a key of a kind.
func (i *issuer) key(kind string) (key crypto.Signer) {
	i.t.Helper()
	if made := i.rsa[kind]; made != nil {
		return made
	}
	var err error
	switch kind {
	case "p256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "p384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "p521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		var bits int
		if _, err = fmt.Sscanf(kind, "rsa%d", &bits); err == nil {
			key, err = rsa.GenerateKey(rand.Reader, bits)
			i.rsa[kind] = key
		}
	}
	if err != nil {
		i.t.Fatalf("key %s: %v", kind, err)
	}
	return key
}

// key makes the server use a key of a kind.
func key(kind string) func(*certSpec) { return func(o *certSpec) { o.kind = kind } }

func bare(o *certSpec)  { o.sends = nil }
func whole(o *certSpec) { o.sends = []*authority{o.issuer.mid, o.issuer.root} }
func odder(o *certSpec) { o.sends = []*authority{o.issuer.root, o.issuer.old, o.issuer.mid} }

func expired(o *certSpec) {
	o.NotBefore, o.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-time.Hour)
}

func notYetValid(o *certSpec) {
	o.NotBefore, o.NotAfter = time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour)
}

func otherName(o *certSpec) { o.DNSNames = []string{"another.example.com"} }

func wildcard(o *certSpec) {
	_, domain, _ := strings.Cut(o.DNSNames[0], ".")
	o.DNSNames = []string{"*." + domain}
}

func wildcardTwoLabels(o *certSpec) {
	_, domain, _ := strings.Cut(o.DNSNames[0], ".")
	_, domain, _ = strings.Cut(domain, ".")
	o.DNSNames = []string{"*." + domain}
}

func manyNames(o *certSpec) {
	for n := range 500 {
		o.DNSNames = append(o.DNSNames, strings.Repeat("n", n%50+1)+".other.example.com")
	}
}

func noName(o *certSpec) { o.DNSNames = nil }

func clientsAlone(o *certSpec) { o.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }

func selfSigned(o *certSpec) { o.below, o.sends = nil, nil }

func byTheRoot(o *certSpec) { o.below, o.sends = o.issuer.root, nil }

func untrusted(o *certSpec) { o.below, o.sends = o.issuer.old, []*authority{o.issuer.old} }

// expiredIntermediate adds an expired intermediate.
func expiredIntermediate(o *certSpec) {
	a := o.issuer.authority("Expired Intermediate", o.issuer.key("p256"), o.issuer.root, expired)
	o.below, o.sends = a, []*authority{a}
}

// crossSigned adds an intermediate with two certificates. The server sends the one of the expired root first.
func crossSigned(o *certSpec) {
	i := o.issuer
	mid := i.authority("Cross-Signed", i.key("p256"), i.root, nil)
	other := i.authority("Cross-Signed", mid.key, i.old, nil)
	o.below, o.sends = mid, []*authority{other, mid}
}

// crossSignedRoot makes the server send the trusted root signed by an expired one, as many did in September 2021.
func crossSignedRoot(o *certSpec) {
	i := o.issuer
	cross := i.authority("Root", i.root.key, i.old, expired)
	o.sends = []*authority{i.mid, cross, i.old}
}

// weakAuthority adds an intermediate with an RSA key of 1,024 bits.
func weakAuthority(o *certSpec) {
	a := o.issuer.authority("Weak", o.issuer.key("rsa1024"), o.issuer.root, nil)
	o.below, o.sends = a, []*authority{a}
}

// pemFile writes a chain, and its key if any, to a file.
func pemFile(t *testing.T, chain tls.Certificate) string {
	t.Helper()
	var text bytes.Buffer
	for _, der := range chain.Certificate {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	if chain.PrivateKey != nil {
		der, err := x509.MarshalPKCS8PrivateKey(chain.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		_ = pem.Encode(&text, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	file := filepath.Join(t.TempDir(), "chain.pem")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// odd creates a certificate that crypto/x509 cannot create, with openssl and below the root: arguments for its request
// and for its signature.
func (i *issuer) odd(host, request, signature string) string {
	i.t.Helper()
	dir := i.t.TempDir()
	root := pemFile(i.t, tls.Certificate{Certificate: [][]byte{i.root.cert.Raw}, PrivateKey: i.root.key})
	line := `cd "$1" && printf 'subjectAltName=DNS:%s' "$2" >names &&
openssl req -new -nodes -keyout key.pem -subj /CN=odd -out request.pem ` + request + ` &&
openssl x509 -req -in request.pem -CA "$3" -CAkey "$3" -days 1 -extfile names -out cert.pem ` + signature + ` &&
cat cert.pem key.pem >chain.pem`
	if out, err := exec.CommandContext(i.t.Context(), "sh", "-c", line, "sh", dir, host, root).CombinedOutput(); err != nil {
		i.t.Fatalf("openssl: %v: %s", err, out)
	}
	return filepath.Join(dir, "chain.pem")
}
