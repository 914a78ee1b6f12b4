package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// serverCA signs certificates of servers.
type serverCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newServerCA(t *testing.T) *serverCA {
	t.Helper()
	ca := &serverCA{}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "servers"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := ca.sign(t, template)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &serverCA{cert, key}
}

// sign returns a certificate and its key. Without a CA it is self-signed.
func (ca *serverCA) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.BasicConstraintsValid = big.NewInt(1), true
	if template.NotBefore = time.Now().Add(-2 * time.Hour); template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// leaf returns a template of a certificate for a name, valid until a time; zero means an hour from now.
func (ca *serverCA) leaf(t *testing.T, name string, until time.Time) *tls.Certificate {
	t.Helper()
	der, key := ca.sign(t, &x509.Certificate{DNSNames: []string{name}, NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestAttackPostgresServerThatIsNotTheOne: a PostgreSQL server that does not prove its name with a valid certificate of
// a trusted root, or has no TLS, learns neither the password nor the user, even if it would accept the login.
func TestAttackPostgresServerThatIsNotTheOne(t *testing.T) {
	t.Parallel()
	const password = "canary-of-the-database-Qz7Qz7"
	trusted, stranger := newServerCA(t), newServerCA(t)
	dir, images := t.TempDir(), withClients(t)
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		images(c)
		c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, roots)
		c.Secrets.Sources = secretIn(t, "db", password)
	}})
	servers := map[string]*harness.Postgres{}
	rules, names := map[string]any{}, []string{}
	add := func(what string, p harness.Postgres) {
		p.Password = password
		servers[what] = w.ServePostgres(p)
		rules[p.Host+":5432"] = map[string]any{"postgres": map[string]any{"user": "app", "database": "orders", "password": map[string]string{"secret": "db"}, "auth": "password"}}
		names = append(names, p.Host+":5432")
	}
	add("the name of another", harness.Postgres{Host: "name.example.com", Addr: "198.51.100.161", Cert: trusted.leaf(t, "other.example.com", time.Time{})})
	add("a CA that nobody trusts", harness.Postgres{Host: "stranger.example.com", Addr: "198.51.100.162", Cert: stranger.leaf(t, "stranger.example.com", time.Time{})})
	add("an expired certificate", harness.Postgres{Host: "expired.example.com", Addr: "198.51.100.163", Cert: trusted.leaf(t, "expired.example.com", time.Now().Add(-time.Hour))})
	add("no TLS", harness.Postgres{Host: "plain.example.com", Addr: "198.51.100.164", Plain: true})
	add("the right one", harness.Postgres{Host: "right.example.com", Addr: "198.51.100.165", Cert: trusted.leaf(t, "right.example.com", time.Time{})})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"runtime": "clients", "attach_headers": rules, "network_policy": harness.Custom(names...)})
	for what, server := range servers {
		var lines []string
		for _, mode := range []string{"sslmode=disable", "sslmode=require", "sslmode=verify-full sslrootcert=$SSL_CERT_FILE"} {
			lines = append(lines, `PGPASSWORD=none psql -X -At "host=`+server.Host+` user=app dbname=orders connect_timeout=120 `+mode+`" -c "select 'welcome'" 2>&1`)
		}
		for _, ran := range w.ShEach(box, lines...) {
			if what == "the right one" {
				if ran.Code != 0 || ran.Out != "welcome\n" {
					t.Errorf("%s: exit %d: %s", what, ran.Code, ran.Out)
				}
				continue
			}
			if ran.Code != 2 || !strings.Contains(ran.Out, "FATAL") || strings.Contains(ran.Out, password) {
				t.Errorf("%s, %s: exit %d: %s", what, ran.Line, ran.Code, ran.Out)
			}
		}
		log := server.Log()
		if what == "the right one" {
			harness.Contains(t, log, "connection authorized: user=app")
			continue
		}
		w.Event(box, func(e audit.Event) bool {
			return e.Verdict == policy.Deny && e.Rule == server.Host+":5432" && e.Reason == name.ReasonUpstreamTLS
		})
		harness.Contains(t, log, "connection received")
		if strings.Contains(log, "user=") || strings.Contains(log, "app") || strings.Contains(log, password) {
			t.Errorf("%s: the server has learned who logs in: %s", what, log)
		}
	}
	if strings.Contains(w.LogText(), password) {
		t.Error("the log shows the password")
	}
}
