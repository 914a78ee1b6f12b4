package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy/name"
)

// clientCA signs the certificates of clients.
type clientCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &clientCA{cert, key}
}

func (ca *clientCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// issue returns a client's certificate and its key, in PEM.
func (ca *clientCA) issue(t *testing.T, name string, until time.Time) (certificate, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, own.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// whoAmI answers with the name in the client's certificate, as a WebSocket message if one is opened, and as an endless
// stream at /stream.
func whoAmI(w http.ResponseWriter, r *http.Request) {
	who := "nobody"
	if certs := r.TLS.PeerCertificates; len(certs) > 0 {
		who = certs[0].Subject.CommonName
	}
	if r.Header.Get("Upgrade") != "" {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte("I am "+who))
		_ = c.Close(websocket.StatusNormalClosure, "")
		return
	}
	fmt.Fprintf(w, "I am %s\n", who)
	if r.URL.Path == "/stream" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// mutualWorld starts a gateway with certificates in files of a folder, and servers that request them:
// mutual.example.com requires one, optional.example.com also accepts requests without, and another host shares the
// address of each.
func mutualWorld(t *testing.T, ca *clientCA) (w *harness.World, dir string) {
	t.Helper()
	dir = t.TempDir()
	w = harness.NewStopped(t, lab.Options{})
	addConfig(w, fmt.Sprintf(`secrets:
  both: {file: %[1]s/both.pem, document: true, refresh: 1h}
  cert: {file: %[1]s/cert.pem, document: true, refresh: 1h}
  key:  {file: %[1]s/key.pem, document: true, refresh: 1h}
  late: {file: %[1]s/late.pem, document: true, refresh: 1h}
`, dir))
	for i, host := range []struct {
		name string
		auth tls.ClientAuthType
	}{{"mutual.example.com", tls.RequireAndVerifyClientCert}, {"optional.example.com", tls.VerifyClientCertIfGiven}, {"careless.example.com", tls.NoClientCert}} {
		if err := w.Net.AddHost(host.name, fmt.Sprintf("198.51.100.9%d", i+1)); err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{ClientAuth: host.auth, ClientCAs: ca.pool(), NextProtos: []string{"h2", "http/1.1"}}
		if err := w.Net.ServeTLS(host.name, 443, http.HandlerFunc(whoAmI), config); err != nil {
			t.Fatal(err)
		}
	}
	return w, dir
}

// writeFile replaces a file of the gateway's secrets.
func writeFile(t *testing.T, dir, name string, parts ...[]byte) {
	t.Helper()
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if err := os.WriteFile(filepath.Join(dir, name), all, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestClientCertificateFromABox: curl in a box reaches servers that request a client certificate, over every version of
// HTTP and as a WebSocket. Only matching requests to the rule's hosts use it. A new certificate is used from the next
// request on. Revoking one closes its connections. Without one no request is sent.
func TestClientCertificateFromABox(t *testing.T) {
	t.Parallel()
	ca := newClientCA(t)
	w, dir := mutualWorld(t, ca)
	until := time.Now().Add(time.Hour)
	blue, blueKey := ca.issue(t, "blue", until)
	writeFile(t, dir, "both.pem", blueKey, blue)
	writeFile(t, dir, "cert.pem", blue)
	writeFile(t, dir, "key.pem", blueKey)
	late, lateKey := ca.issue(t, "late", time.Now().Add(-time.Minute))
	writeFile(t, dir, "late.pem", late, lateKey)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := map[string]any{"client_certificate": map[string]any{"secret": "both"}}
	box := w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "allow-all"},
		"attach_headers": map[string]any{
			"mutual.example.com": both,
			"optional.example.com": []any{
				map[string]any{"match": map[string]any{"path": map[string]string{"prefix": "/mine"}}, "client_certificate": map[string]any{
					"certificate": map[string]string{"secret": "cert"}, "key": map[string]string{"secret": "key"}}},
				map[string]any{"match": map[string]any{"path": map[string]string{"prefix": "/late"}},
					"client_certificate": map[string]string{"secret": "late"}},
				map[string]any{"headers": map[string]string{"X-Team": "none"}},
			},
			"careless.example.com": both,
			"bad-cert.example.com": both,
		},
	})
	wantBothVersions(w, box, [2]string{"mutual.example.com/", "I am blue"}, [2]string{"optional.example.com/mine", "I am blue"}, [2]string{"optional.example.com/other", "I am nobody"},
		[2]string{"mutual.example.com/", "I am blue"}, [2]string{"optional.example.com/mine", "I am blue"}, [2]string{"optional.example.com/other", "I am nobody"},
		[2]string{"careless.example.com/", "upstream_tls; does not ask for the client certificate"},
		[2]string{"bad-cert.example.com/", "upstream_tls"}, [2]string{"optional.example.com/late", "secret_unavailable"})
	harness.Contains(t, w.MustSh(box, `curl -sS -m 20 --http1.1 -H "Connection: Upgrade" -H "Upgrade: websocket" -H "Sec-WebSocket-Version: 13" `+
		`-H "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==" https://mutual.example.com/ws -o - | tr -d '\000-\037'`), "I am blue")
	f := w.Intrude(box).Frames("mutual.example.com")
	f.Send(1, false, harness.Head("mutual.example.com", harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket"},
		harness.Field{":path", "/ws"}, harness.Field{"sec-websocket-version", "13"})...)
	if got := f.Outcome(1); got != "200" {
		t.Errorf("a WebSocket over HTTP/2: %s", got)
	}
	w.Event(box, func(e audit.Event) bool { return strings.Contains(e.Error, "the certificate has expired") })
	w.Event(box, func(e audit.Event) bool {
		return e.Name == "optional.example.com" && e.Secret == "cert" && e.Status == http.StatusOK
	})

	certificateRotates(t, w, box, dir, ca)

	for where, text := range map[string]string{"log": w.LogText(), "decisions": fmt.Sprintf("%+v", w.Events(box)), "the API": w.Run(0, nil, "", "headers", "list", "--box", box, "--json")} {
		if strings.Contains(text, "BEGIN") || strings.Contains(text, string(blueKey[40:80])) {
			t.Errorf("%s shows a key", where)
		}
	}
	harness.Contains(t, w.Run(0, nil, "", "headers", "list", "--box", box), "(client certificate) (both)")
	if found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine(string(blueKey[40:80]))))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches in the box: %v", found)
	}
}

// certificateRotates replaces the certificate while a stream opened with the old one is open, and then breaks it.
func certificateRotates(t *testing.T, w *harness.World, box, dir string, ca *clientCA) {
	t.Helper()
	w.MustSh(box, "(curl -sS -N --http2 https://mutual.example.com/stream > /tmp/stream 2>&1; echo ended >> /tmp/stream) & "+
		"until grep -q -e 'I am' -e ended /tmp/stream; do sleep 0.1; done")
	harness.Contains(t, w.MustSh(box, "cat /tmp/stream"), "I am blue")
	green, greenKey := ca.issue(t, "green", time.Now().Add(time.Hour))
	writeFile(t, dir, "both.pem", green, greenKey)
	if out, exit := w.GatewayCommand("secret", "refresh", "both"); exit != 0 {
		t.Fatalf("the refresh failed: %s", out)
	}
	w.MustSh(box, "until grep -q ended /tmp/stream; do sleep 0.1; done")
	wantBothVersions(w, box, [2]string{"mutual.example.com/", "I am green"}, [2]string{"optional.example.com/mine", "I am blue"})
	stranger, _ := newClientCA(t).issue(t, "red", time.Now().Add(time.Hour))
	writeFile(t, dir, "both.pem", stranger, greenKey)
	if out, exit := w.GatewayCommand("secret", "refresh", "both"); exit != 0 {
		t.Fatalf("the refresh failed: %s", out)
	}
	wantBothVersions(w, box, [2]string{"mutual.example.com/", `"secret_unavailable"`})
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonSecretUnavailable && e.Status == http.StatusBadGateway && strings.Contains(e.Error, `secret "both"`)
	})
}

// wantBothVersions requests URLs from a box in turn, by each version of HTTP. Each URL is followed by texts that the
// answer must contain.
func wantBothVersions(w *harness.World, box string, answers ...[2]string) {
	w.T.Helper()
	var lines []string
	for _, way := range []string{"--http1.1 ", "--http2 "} {
		for _, a := range answers {
			lines = append(lines, "curl -sS "+way+"https://"+a[0])
		}
	}
	for i, ran := range w.ShEach(box, lines...) {
		if ran.Code != 0 {
			w.T.Errorf("%s: exit %d", ran.Line, ran.Code)
		}
		harness.Contains(w.T, ran.Out, strings.Split(answers[i%len(answers)][1], "; ")...)
	}
}
