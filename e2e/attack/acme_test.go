package attack

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/certs/acme/pebbletest"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// The certificate authority of the internet, and the gateway's address there.
const (
	issuerIP   = "192.0.2.253"
	issuerPort = 14000
	gatewayIP  = "192.0.2.254"
)

// issued is a gateway whose public URLs get certificates from an issuer on the internet.
type issued struct {
	*harness.World
	issuer *pebbletest.Pebble
	roots  *x509.CertPool
}

func newIssued(t *testing.T, domains ...config.Domain) *issued {
	t.Helper()
	dir := t.TempDir()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Ingress.Domain = "preview.example.com"
		c.Ingress.TLS.Mode, c.Ingress.Domains = "acme", domains
		c.Ingress.TLS.ACME.Email = "ops@example.com"
		c.Ingress.TLS.ACME.Issuers = config.Issuers{{Directory: "https://192.0.2.253:14000/dir", Roots: filepath.Join(dir, "roots.pem")}}
	}})
	for _, name := range []string{"*.preview.example.com", "app.example.org"} {
		if err := w.Net.SetRecords(name, name+". 60 IN A "+gatewayIP); err != nil {
			t.Fatal(err)
		}
	}
	v := &issued{World: w, issuer: pebbletest.Start(t, pebbletest.Options{
		IP: issuerIP, Port: issuerPort, Dir: dir, HTTPPort: 80, TLSPort: 443, DNS: w.Net.DNSServers()[0], Validity: 60 * 24 * time.Hour,
		Run: w.Net.Internet().Start, Dial: w.Net.Internet().DialContext,
	})}
	v.roots = v.issuer.Roots(t)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return v
}

// connect makes a handshake from the internet.
func (v *issued) connect(host string, protocols ...string) (*tls.Conn, error) {
	v.T.Helper()
	tcp, err := v.Net.Internet().DialContext(v.T.Context(), "tcp", gatewayIP+":443")
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { _ = tcp.Close() })
	_ = tcp.SetDeadline(time.Now().Add(harness.Patience))
	conn := tls.Client(tcp, &tls.Config{ServerName: host, RootCAs: v.roots, NextProtos: protocols})
	return conn, conn.Handshake()
}

// get fetches https://host/ and returns the status.
func (v *issued) get(host string) (int, error) {
	v.T.Helper()
	c := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: v.roots}, DialContext: v.Net.Internet().DialContext, DisableKeepAlives: true,
	}}
	// The test resolves for the client, which is not in the internet namespace.
	req, err := http.NewRequestWithContext(v.T.Context(), "GET", "https://"+gatewayIP+"/", nil)
	if err != nil {
		v.T.Fatal(err)
	}
	req.Host = host
	c.Transport.(*http.Transport).TLSClientConfig.ServerName = host
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// TestAttackCertificatesForRandomNames: a stranger tries to exhaust the issuer's quota with made-up names, by
// handshakes like a browser's or an issuer's, and by HTTP-01. Public URLs get their certificates. For other names the
// gateway contacts neither the issuer nor the disk.
func TestAttackCertificatesForRandomNames(t *testing.T) {
	t.Parallel()
	v := newIssued(t)
	box := v.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	v.MustSh(box, socketServer)
	var made harness.PublicURL
	if err := v.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "hostnames": []string{"app.example.org"}}, &made); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"app.example.org", strings.TrimPrefix(made.URL, "https://")} {
		v.Until(host+" is served", func() bool {
			status, _ := v.get(host) // a busy machine may have no certificate before the handshake times out
			return status == 200
		})
	}
	v.assertShown("app.example.org")
	asked, kept := v.issuer.Asked(), v.stored()
	for _, host := range []string{
		"evil.example.org", "www.app.example.org", box + "-8001.preview.example.com", "preview.example.com", "localhost", gatewayIP, "",
	} {
		for _, protocols := range [][]string{nil, {"h2", "http/1.1"}, {"acme-tls/1"}} {
			if conn, err := v.connect(host, protocols...); err == nil {
				t.Errorf("%q by %v: %v", host, protocols, conn.ConnectionState().PeerCertificates[0].DNSNames)
			}
		}
		if status := v.challenge(host); status == 200 {
			t.Errorf("%q answers a challenge", host)
		}
	}
	if conn, err := v.connect("app.example.org", "acme-tls/1", "x"); err == nil { // an issuer offers acme-tls/1 only
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("a connection for validation serves %d bytes", n)
		}
	}
	if now := v.issuer.Asked(); now != asked || v.stored() != kept {
		t.Errorf("the issuer was asked %d times more; stored are\n%s, before it was\n%s", now-asked, v.stored(), kept)
	}
	if err := v.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "preview", "8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := v.connect("app.example.org"); err == nil {
		t.Error("the certificate of a URL that is deleted is shown")
	}
}

// assertShown requires that the operator is shown the remaining validity of the two certificates.
func (v *issued) assertShown(host string) {
	v.T.Helper()
	if out, _ := v.GatewayCommand("check", "--config", v.Config); !strings.Contains(out, "certificate "+host+", 59 days left") ||
		!strings.Contains(out, "cannot be checked from here") {
		v.T.Errorf("gateway check says\n%s", out)
	}
	text, err := v.Net.Gateway().Run(v.T.Context(), "curl", "-sS", "--fail", "http://127.0.0.1:9600/metrics")
	if err != nil {
		v.T.Fatal(err)
	}
	for _, line := range []string{"boxgate_certificates 2\n", "boxgate_certificate_days_left 59.9", "boxgate_certificates_failing 0\n"} {
		if !strings.Contains(text, "\n"+line) {
			v.T.Errorf("no %q in the metrics", line)
		}
	}
	if strings.Contains(text, host) {
		v.T.Errorf("the metrics name %s", host)
	}
}

// challenge requests the answer to an HTTP-01 challenge, and returns the status.
func (v *issued) challenge(host string) int {
	v.T.Helper()
	c := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{DialContext: v.Net.Internet().DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(v.T.Context(), "GET", "http://"+gatewayIP+"/.well-known/acme-challenge/token", nil)
	if err != nil {
		v.T.Fatal(err)
	}
	req.Host = host
	resp, err := c.Do(req)
	if err != nil {
		v.T.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// stored lists the files below the directory of the certificates.
func (v *issued) stored() string {
	v.T.Helper()
	var list strings.Builder
	err := filepath.WalkDir(filepath.Join(v.Dir, "state", "acme", "certificates"), func(path string, _ os.DirEntry, err error) error {
		list.WriteString(path + "\n")
		return err
	})
	if err != nil {
		v.T.Fatal(err)
	}
	return list.String()
}
