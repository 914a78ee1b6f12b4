package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"boxgate/policy"
	"boxgate/policy/name"
)

// serve answers every request with hello, with leaves of box b, and returns the port.
func serve(t *testing.T, m *Minter) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			n, err := name.Parse(h.ServerName)
			if err != nil {
				return nil, err
			}
			return m.LeafFor(h.Context(), h, "b", n)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ErrorLog: nil, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestRSAAlone connects with three TLS implementations that accept only RSA, and with one that accepts both.
func TestRSAAlone(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "box")
	var m Minter
	if err := m.Add("b", ca); err != nil {
		t.Fatal(err)
	}
	port := serve(t, &m)
	root := write(t, "ca.pem", ca.CertificatePEM())
	curl := func(args ...string) {
		t.Helper()
		args = append(args, "-sS", "--noproxy", "*", "--max-time", "50", "--cacert", root, "--resolve", "api.example.com:"+port+":127.0.0.1", "https://api.example.com:"+port+"/")
		if out, err := exec.Command("curl", args...).CombinedOutput(); err != nil || string(out) != "hello" {
			t.Errorf("curl %s: %v: %s", args, err, out)
		}
	}
	openssl := func(args ...string) {
		t.Helper()
		args = append([]string{
			"s_client", "-connect", "127.0.0.1:" + port, "-servername", "api.example.com", "-verify_hostname", "api.example.com",
			"-CAfile", root, "-no-CApath", "-verify_return_error", "-x509_strict", "-brief",
		}, args...)
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("Verification: OK")) {
			t.Errorf("openssl %s: %v: %s", args, err, out)
		}
	}
	curl()
	openssl()
	if m.boxes["b"].rsa.Load() != nil {
		t.Error("an RSA key was made for clients that take ECDSA")
	}
	curl("--tls-max", "1.2", "--ciphers", "ECDHE-RSA-AES128-GCM-SHA256")
	openssl("-sigalgs", "rsa_pss_rsae_sha256:RSA+SHA256")
	openssl("-tls1_2", "-sigalgs", "RSA+SHA256")
	if m.boxes["b"].rsa.Load() == nil {
		t.Fatal("no RSA key was made")
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	for _, suite := range []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256} {
		c, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{ServerName: "api.example.com", RootCAs: pool, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}})
		if err != nil {
			t.Errorf("Go with %s: %v", tls.CipherSuiteName(suite), err)
			continue
		}
		leaf := c.ConnectionState().PeerCertificates[0]
		_, isRSA := leaf.PublicKey.(*rsa.PublicKey)
		if isRSA != (suite == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) {
			t.Errorf("Go with %s: a leaf of %s", tls.CipherSuiteName(suite), leaf.PublicKeyAlgorithm)
		}
		if isRSA && leaf.SignatureAlgorithm != x509.SHA256WithRSA {
			t.Errorf("the RSA leaf is signed by %s", leaf.SignatureAlgorithm)
		}
		_ = c.Close()
	}
}

// helloOf returns the hello of a client as a server sees it.
func helloOf(t *testing.T, cfg *tls.Config) *tls.ClientHelloInfo {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() { _ = tls.Client(client, cfg).Handshake() }()
	var got *tls.ClientHelloInfo
	_ = tls.Server(server, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		got = h
		return nil, io.EOF
	}}).Handshake()
	if got == nil {
		t.Fatal("no hello")
	}
	return got
}

var rsaClient = &tls.Config{ServerName: "a.example.com", MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}

// TestFloodOfHellosMakesOneKey requests RSA leaves of many names concurrently.
func TestFloodOfHellosMakesOneKey(t *testing.T) {
	t.Parallel()
	var m Minter
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	hello := helloOf(t, rsaClient)
	names := []string{"a.example.com", "b.example.com", "c.example.com"}
	keys := make([]any, 60)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			for {
				leaf, err := m.LeafFor(context.Background(), hello, "b", mustName(t, names[i%len(names)]))
				switch {
				case err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error()):
					continue // the host is too busy to generate a key in ten seconds
				case err != nil:
					t.Error(err)
				default:
					keys[i] = leaf.PrivateKey
				}
				return
			}
		})
	}
	all.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Fatal("two keys for one box")
		}
	}
	for i := range rsaLeafCache + 5 {
		leaf, err := m.LeafFor(t.Context(), hello, "b", mustName(t, fmt.Sprintf("n%d.example.com", i)))
		if err != nil {
			t.Fatal(err)
		}
		if leaf.PrivateKey != keys[0] {
			t.Fatal("another key for one box")
		}
	}
	if got := m.boxes["b"].rsaCache.Len(); got != rsaLeafCache {
		t.Errorf("%d RSA leaves kept, want %d", got, rsaLeafCache)
	}
}

// TestRSAKeyHoldsUpNoOtherClient requests an ECDSA leaf of the same box, and of another, while a key is being
// generated.
func TestRSAKeyHoldsUpNoOtherClient(t *testing.T) {
	t.Parallel()
	var m Minter
	for _, box := range []policy.BoxID{"b", "other"} {
		if err := m.Add(box, newCA(t, string(box))); err != nil {
			t.Fatal(err)
		}
	}
	m.generatingRSA.Lock() // a key that takes forever
	ctx, cancel := context.WithCancel(t.Context())
	hello, done := helloOf(t, rsaClient), make(chan error, 1)
	go func() {
		_, err := m.LeafFor(ctx, hello, "b", mustName(t, "a.example.com"))
		done <- err
	}()
	both := helloOf(t, &tls.Config{ServerName: "a.example.com"})
	for _, box := range []policy.BoxID{"b", "other"} {
		leaf, err := m.LeafFor(t.Context(), both, box, mustName(t, "a.example.com"))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := leaf.PrivateKey.(*ecdsa.PrivateKey); !ok {
			t.Errorf("a %T for a client that takes both", leaf.PrivateKey)
		}
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("a leaf without a key")
	}
	m.Remove("b")
	m.generatingRSA.Unlock()
	if _, err := m.LeafFor(t.Context(), hello, "b", mustName(t, "a.example.com")); err == nil {
		t.Error("a leaf for a box that was removed")
	}
}

// TestAttackHostNamedLikeARequest checks that while the RSA key of a box is generated, a host with any name gets its
// leaf.
func TestAttackHostNamedLikeARequest(t *testing.T) {
	t.Parallel()
	var m Minter
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	m.generatingRSA.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // the generation continues in the background
	defer cancel()
	if _, err := m.LeafFor(ctx, helloOf(t, rsaClient), "b", mustName(t, "a.example.com")); err == nil {
		t.Fatal("a leaf without a key")
	}
	got := make(chan error, 1)
	go func() {
		_, err := m.Leaf(t.Context(), "b", mustName(t, "rsa"))
		got <- err
	}()
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("no leaf as long as the key is made")
	}
	m.generatingRSA.Unlock()
}

// TestAttackFloodOfRSAHandshakes checks that the cost of RSA signatures is bounded for each box, and that only clients
// that accept only RSA are affected.
func TestAttackFloodOfRSAHandshakes(t *testing.T) {
	t.Parallel()
	var m Minter
	for _, box := range []policy.BoxID{"b", "other"} {
		if err := m.Add(box, newCA(t, string(box))); err != nil {
			t.Fatal(err)
		}
		m.boxes[box].rsaPace.SetLimit(rate.Every(time.Hour)) // shortens the test
	}
	hello, n := helloOf(t, rsaClient), mustName(t, "a.example.com")
	granted := 0
	for range 2 * rsaBurst {
		if _, err := m.LeafFor(t.Context(), hello, "b", n); err == nil {
			granted++
		}
	}
	if granted == 0 || granted > rsaBurst {
		t.Errorf("%d RSA leaves at once, want %d", granted, rsaBurst)
	}
	if _, err := m.LeafFor(t.Context(), helloOf(t, &tls.Config{ServerName: "a.example.com"}), "b", n); err != nil {
		t.Errorf("a client that takes both: %v", err)
	}
	for range 10 { // on a busy host, generating the key may take longer than a call waits
		if _, err := m.LeafFor(t.Context(), hello, "other", n); err == nil {
			return
		}
	}
	t.Error("another box gets no RSA leaf")
}

// TestAuthorityOfEarlierGateways uses a box's authority that may not sign subordinate authorities.
func TestAuthorityOfEarlierGateways(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "old")
	old := *ca.cert
	old.MaxPathLen, old.MaxPathLenZero = 0, true
	var err error
	if ca.cert, err = selfSigned(&old, ca); err != nil {
		t.Fatal(err)
	}
	by, err := ca.newRSAIssuer()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := by.issue("a.example.com", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	if len(leaf.Certificate) != 1 {
		t.Errorf("a chain of %d", len(leaf.Certificate))
	}
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example.com", Roots: pool}); err != nil {
		t.Error(err)
	}
}

func selfSigned(c *x509.Certificate, by *Authority) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(nil, c, c, &by.key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// TestCertificatesAreBackdated covers resumed guests whose clock is days behind.
func TestCertificatesAreBackdated(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "box")
	var m Minter
	if err := m.Add("b", ca); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	for kind, client := range map[string]*tls.Config{"ECDSA": {ServerName: "a.example.com"}, "RSA": rsaClient} {
		leaf, err := m.LeafFor(t.Context(), helloOf(t, client), "b", mustName(t, "a.example.com"))
		if err != nil {
			t.Fatal(err)
		}
		others := x509.NewCertPool()
		for _, der := range leaf.Certificate[1:] {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			others.AddCert(c)
		}
		for _, behind := range []time.Duration{0, 30 * time.Hour, 6 * 24 * time.Hour} {
			_, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example.com", Roots: pool, Intermediates: others, CurrentTime: time.Now().Add(-behind)})
			if err != nil {
				t.Errorf("%s, with a clock that is %v behind: %v", kind, behind, err)
			}
		}
	}
}

// TestAttackKeyOfTheAuthorityDecrypts: a client without ECDHE gets a leaf for key exchange, if the configuration accepts its cipher suites,
// whose key is not that of the RSA authority. Other clients get the leaves that they get without these suites.
func TestAttackKeyOfTheAuthorityDecrypts(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "box")
	var m Minter
	if err := m.Add("b", ca); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertificatePEM())
	old := []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA}
	server := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		n, err := name.Parse(h.ServerName)
		if err != nil {
			return nil, err
		}
		return m.LeafFor(h.Context(), h, "b", n)
	}}
	connect := func(accepted, offered []uint16) (tls.ConnectionState, error) {
		near, far := net.Pipe()
		config := server.Clone()
		config.CipherSuites = accepted
		go func() {
			defer far.Close()
			_ = tls.Server(far, config).Handshake()
		}()
		defer near.Close()
		client := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "a.test", MaxVersion: tls.VersionTLS12, CipherSuites: offered})
		err := client.Handshake()
		return client.ConnectionState(), err
	}
	both := append([]uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, old...)
	if _, err := connect(nil, old); err == nil {
		t.Error("RSA key exchange is accepted by default")
	}
	for range 2 {
		state, err := connect(both, old)
		if err != nil {
			t.Fatal(err)
		}
		leaf, authority := state.PeerCertificates[0], state.PeerCertificates[1]
		if !authority.IsCA || leaf.PublicKey.(*rsa.PublicKey).Equal(authority.PublicKey) || leaf.KeyUsage&x509.KeyUsageKeyEncipherment == 0 {
			t.Errorf("the leaf for key exchange has the usage %b, and the key of %v", leaf.KeyUsage, authority.Subject)
		}
	}
	state, err := connect(both, both[:1]) // RSA signatures
	if err != nil || state.PeerCertificates[0].KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("a client with ECDHE: %v, usage %b", err, state.PeerCertificates[0].KeyUsage)
	}
	mixed := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, old[0]} // crypto/tls prefers the second
	state, err = connect(append(mixed, both...), mixed)
	if err != nil || state.CipherSuite != mixed[0] {
		t.Errorf("a client with ECDHE, CBC and SHA-256: %v, %s", err, tls.CipherSuiteName(state.CipherSuite))
	}
	if state, err = connect(both, both); err != nil || state.CipherSuite != both[1] {
		t.Errorf("a client with everything: %v, %s", err, tls.CipherSuiteName(state.CipherSuite))
	}
}
