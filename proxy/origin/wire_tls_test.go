package origin_test

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// replayed is a connection with bytes that were read already.
type replayed struct {
	net.Conn
	in io.Reader
}

func (r replayed) Read(b []byte) (int, error) { return r.in.Read(b) }

// TestServersThatWantSmallHellos: a server resets, closes or drops a ClientHello that does not fit one packet. It is asked
// once more by a small one, and only so from then on.
func TestServersThatWantSmallHellos(t *testing.T) {
	t.Parallel()
	for what, refuse := range map[string]func(net.Conn){
		"resets": func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
		"closes": func(net.Conn) {},
		"drops":  func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"none":   nil,
	} {
		for _, h2 := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				l.With(func(c *proxy.Config) {
					if c.HandshakeTimeout = time.Minute; what == "drops" {
						c.HandshakeTimeout = 15 * time.Second // a third of it for the first hello
					}
				})
				var large, small atomic.Int32
				port := l.RawListen(nil, func(c net.Conn, r *bufio.Reader) {
					head := make([]byte, 5)
					if _, err := io.ReadFull(r, head); err != nil {
						return
					}
					if int(head[3])<<8+int(head[4]) <= 1400 {
						small.Add(1)
					} else if large.Add(1); refuse != nil {
						refuse(c)
						return
					}
					s := tls.Server(replayed{c, io.MultiReader(bytes.NewReader(head), r)}, &tls.Config{GetCertificate: l.Upstream.ForHello})
					in := bufio.NewReader(s)
					for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
						var err error
						if line, err = in.ReadString('\n'); err != nil {
							return
						}
					}
					_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwire")
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				client := l.HTTPClientLater(port, h2)
				for range 3 {
					if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 || text != "wire" {
						t.Fatalf("%d %s", res.StatusCode, text)
					}
				}
				if refuse == nil && (large.Load() != 3 || small.Load() != 0) || refuse != nil && (large.Load() != 1 || small.Load() != 3) {
					t.Errorf("%d large hellos and %d small ones", large.Load(), small.Load())
				}
			})
		}
	}
}

// TestTwoHellosAtMost: a server that resets whatever it is sent is not asked a third time.
func TestTwoHellosAtMost(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var hellos atomic.Int32
	port := l.RawListen(nil, func(c net.Conn, r *bufio.Reader) {
		if _, err := r.Peek(5); err == nil {
			hellos.Add(1)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	res, text := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
	if res.StatusCode != 502 || !strings.Contains(text, "connection reset") || hellos.Load() != 2 {
		t.Errorf("%d hellos: %d %s", hellos.Load(), res.StatusCode, text)
	}
}

// chained is a certificate for API as a server presents it.
type chained struct {
	root *x509.Certificate
	leaf tls.Certificate
}

// newChain makes a certificate for key, signed by a certificate of ca. edit may change the certificate before it is signed.
func newChain(t *testing.T, key, ca crypto.Signer, edit func(*x509.Certificate)) chained {
	t.Helper()
	sign := func(c, parent *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, parent, public, ca)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	root = sign(root, root, ca.Public())
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: proxytest.API}, NotBefore: from, NotAfter: to, DNSNames: []string{proxytest.API}}
	if edit != nil {
		edit(leaf)
	}
	return chained{root, tls.Certificate{Certificate: [][]byte{sign(leaf, root, key.Public()).Raw}, PrivateKey: key}}
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ecdsaKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestAttackSecretsUnderWeakKeys: a server whose RSA key, or whose authority's, OpenSSL would not take gets no secret.
func TestAttackSecretsUnderWeakKeys(t *testing.T) {
	t.Parallel()
	strong, weak := rsaKey(t, 2048), rsaKey(t, 1024)
	for what, test := range map[string]struct {
		key, ca crypto.Signer
		status  int
	}{
		"leaf":      {weak, ecdsaKey(t), 502},
		"authority": {ecdsaKey(t), weak, 502},
		"neither":   {strong, strong, 200},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := newChain(t, test.key, test.ca, nil)
			l.With(func(c *proxy.Config) {
				c.Roots = x509.NewCertPool()
				c.Roots.AddCert(chain.root)
			})
			var secrets atomic.Int32
			port := l.RawListen(&tls.Config{Certificates: []tls.Certificate{chain.leaf}, MaxVersion: version}, func(c net.Conn, r *bufio.Reader) {
				for {
					line, err := r.ReadString('\n')
					if strings.Contains(line, "s3cret") {
						secrets.Add(1)
					}
					if err != nil || line == "\r\n" {
						break
					}
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			})
			l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
			client := l.HTTPClient(port, false)
			for range 2 { // the second time with whatever session there is
				res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
				if res.StatusCode != test.status || test.status == 502 && !strings.Contains(text, "RSA key of less than 2,048 bits") {
					t.Errorf("%s, %s: %d %s", what, tls.VersionName(version), res.StatusCode, text)
				}
			}
			if got := secrets.Load() > 0; got != (test.status == 200) {
				t.Errorf("%s, %s: the secret was sent: %v", what, tls.VersionName(version), got)
			}
		}
	}
}

// sServer is openssl s_server with a certificate for API.
type sServer struct {
	port uint16
	in   io.Writer

	mu  sync.Mutex
	out bytes.Buffer
}

func (s *sServer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

func (s *sServer) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func startServer(t *testing.T, l *proxytest.Rig, chain chained, args ...string) *sServer {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(chain.leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain.leaf.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	file := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	l.With(func(c *proxy.Config) {
		c.Roots = x509.NewCertPool()
		c.Roots.AddCert(chain.root)
	})
	s := &sServer{}
	cmd := exec.Command("openssl", append([]string{"s_server", "-accept", "127.0.0.1:0", "-cert", file}, args...)...)
	cmd.Stdout, cmd.Stderr = s, s
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	proxytest.Await(t, "the port of openssl s_server", func() bool {
		_, after, ok := strings.Cut(s.text(), "ACCEPT ")
		line, _, whole := strings.Cut(after, "\n")
		at, err := netip.ParseAddrPort(line)
		s.port = at.Port()
		return ok && whole && err == nil
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(s.port))
	return s
}

// TestRenegotiation: a server that has read the request asks for another handshake, with an optional client certificate, as IIS
// and SAP do. The gateway accepts one per connection, and refuses all over HTTP/2.
func TestRenegotiation(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		args     string
		reads    string // after which the server asks
		asks     string
		statuses []int
	}{
		"never":       {"-crlf", "POST /late", "", []int{200}},
		"once":        {"-crlf", "POST /late", "R\n", []int{200}},
		"twice":       {"-crlf", "POST /late", "R\n", []int{200, 502}},
		"over HTTP/2": {"-alpn h2", "PRI * HTTP/2.0", "R\n", []int{502}},
	} {
		for _, h2 := range []bool{false, true} {
			if what == "over HTTP/2" && !h2 {
				continue // which is not offered to the server
			}
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				s := startServer(t, l, newChain(t, rsaKey(t, 2048), ecdsaKey(t), nil), append(strings.Fields(test.args), "-tls1_2")...)
				answered, over := make(chan struct{}), make(chan struct{})
				says := func(text string, times int) bool {
					for limit := time.Now().Add(time.Minute); strings.Count(s.text(), text) < times; {
						select {
						case <-answered:
							return false
						case <-time.After(time.Millisecond):
							if time.Now().After(limit) {
								return false
							}
						}
					}
					return true
				}
				go func() {
					defer close(over)
					for n := 1; says(test.reads, n); n++ {
						_, _ = io.WriteString(s.in, test.asks)
						if test.asks != "" && !says("SSL_do_handshake -> 1", n) {
							return
						}
						_, _ = io.WriteString(s.in, "HTTP/1.1 200 OK\nContent-Length: 4\n\nwire")
					}
				}()
				client, refused := l.HTTPClientLater(s.port, h2), 0
				for _, status := range test.statuses {
					res, err := client.Post("https://"+proxytest.HostPort(s.port)+"/late", "text/plain", nil)
					if err != nil {
						t.Fatalf("%v\n%s", err, s.text())
					}
					text, _ := io.ReadAll(res.Body)
					if _ = res.Body.Close(); res.StatusCode != status || status == 200 && string(text) != "wire" {
						t.Errorf("%d %s\n%s", res.StatusCode, text, s.text())
					}
					if status == 502 && res.StatusCode == status {
						refused++
						says("no renegotiation", refused)
					}
				}
				close(answered)
				if <-over; strings.Count(s.text(), "no renegotiation") < refused {
					t.Errorf("another handshake was not refused:\n%s", s.text())
				}
			})
		}
	}
}

// TestWhatServersOfferIsNamed: the error response names the server's offer that the gateway does not support, or the fault of
// the server's certificate.
func TestWhatServersOfferIsNamed(t *testing.T) {
	t.Parallel()
	key, ca := rsaKey(t, 2048), ecdsaKey(t)
	good, negative := newChain(t, key, ca, nil), newChain(t, key, ca, func(c *x509.Certificate) { c.SerialNumber = big.NewInt(77) })
	der := negative.leaf.Certificate[0]
	der[bytes.Index(der, []byte{2, 1, 77})+2] = 0x100 - 77 // parsing fails before the signature does
	for _, test := range []struct {
		chain chained
		args  string
		want  string
	}{
		{good, "", "200"},
		{good, "-tls1_2 -cipher DHE-RSA-AES256-GCM-SHA384", "the server offers TLS 1.2 with DHE-RSA-AES256-GCM-SHA384; the gateway needs a cipher suite of ECDHE"},
		{good, "-tls1_2 -cipher AES256-GCM-SHA384", "the server offers TLS 1.2 with AES256-GCM-SHA384 (RSA key exchange), which the gateway offers only if the header rule of the host has upstream_tls: legacy"},
		{good, "-tls1_2 -cipher ECDHE-RSA-AES256-SHA384", "the server offers TLS 1.2 with ECDHE-RSA-AES256-SHA384; the gateway needs"},
		{good, "-groups X448", "the server offers TLS 1.3 with the group X448; the gateway needs X25519"},
		{good, "-tls1_2 -groups X448", "the server offers TLS 1.2 with the group X448; the gateway needs X25519"},
		{good, "-tls1_3 -groups ffdhe2048", "the server offers TLS 1.3 with the group ffdhe2048"},
		{good, "-tls1_1 -cipher ALL:@SECLEVEL=0", "the server offers TLS 1.1 at most; the gateway needs TLS 1.2 or 1.3"},
		{good, "-tls1_2 -Verify 1", "or it asks for a client certificate"},
		{newChain(t, key, ca, func(c *x509.Certificate) { c.DNSNames = nil }), "", "has no subjectAltName: its common name (CN)"},
		{negative, "", "has a negative serial number"},
		{newChain(t, key, ca, func(c *x509.Certificate) { c.DNSNames = []string{"other.example"} }), "", "is not for this name"},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			s := startServer(t, l, test.chain, append([]string{"-www"}, strings.Fields(test.args)...)...)
			for range 2 { // the second time from memory
				res, text := proxytest.Get(t, l.HTTPClient(s.port, false), "https://"+proxytest.HostPort(s.port)+"/", nil)
				if (res.StatusCode == 200) != (test.want == "200") || res.StatusCode != 200 && !strings.Contains(text, test.want) {
					t.Errorf("%d %.300s", res.StatusCode, text)
				}
			}
		})
	}
}

// TestAttackLegacySuites: old cipher suites are used only under a rule with upstream_tls: legacy, and only by servers without current
// ones. No option makes the gateway accept short RSA keys, other names or unknown authorities.
func TestAttackLegacySuites(t *testing.T) {
	t.Parallel()
	key, ca := rsaKey(t, 2048), ecdsaKey(t)
	good := newChain(t, key, ca, nil)
	for _, test := range []struct {
		name           string
		chain          chained
		args           string
		strict, legacy string // part of the error, or of the page of `openssl s_server -www`
	}{
		{"current", good, "", "TLSv1.3, Cipher is TLS_", "TLSv1.3, Cipher is TLS_"},
		{"current TLS 1.2", good, "-tls1_2", "Cipher is ECDHE-RSA-AES", "Cipher is ECDHE-RSA-AES"},
		{"RSA key exchange", good, "-tls1_2 -cipher AES256-GCM-SHA384:AES128-GCM-SHA256", "upstream_tls: legacy", "Cipher is AES"},
		{"RSA key exchange, CBC", good, "-tls1_2 -cipher AES128-SHA", "upstream_tls: legacy", "Cipher is AES128-SHA"},
		{"RSA key exchange, CBC with SHA-256", good, "-tls1_2 -cipher AES128-SHA256", "upstream_tls: legacy", "Cipher is AES128-SHA256"},
		{"CBC with SHA-256", good, "-tls1_2 -cipher ECDHE-RSA-AES256-SHA384:ECDHE-RSA-AES128-SHA256", "502", "Cipher is ECDHE-RSA-AES128-SHA256"},
		{"CBC with SHA-384", good, "-tls1_2 -cipher ECDHE-RSA-AES256-SHA384", "the gateway needs", "the gateway needs"},
		{"DHE", good, "-tls1_2 -cipher DHE-RSA-AES256-GCM-SHA384", "the gateway needs", "the gateway needs"},
		{"TLS 1.1", good, "-tls1_1 -cipher ALL:@SECLEVEL=0", "the gateway needs TLS 1.2", "the gateway needs TLS 1.2"},
		{"short key", newChain(t, rsaKey(t, 1024), ca, nil), "-tls1_2 -cipher AES128-GCM-SHA256:@SECLEVEL=0", "upstream_tls: legacy", "RSA key of less than 2,048 bits"},
		{"another name", newChain(t, key, ca, func(c *x509.Certificate) { c.DNSNames = []string{"other.example"} }), "-tls1_2 -cipher AES128-GCM-SHA256", "upstream_tls: legacy", "is not for this name"},
	} {
		for option, want := range map[string]string{"": test.strict, `, "upstream_tls": "legacy"`: test.legacy} {
			t.Run(test.name+option, func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				s := startServer(t, l, test.chain, append([]string{"-www"}, strings.Fields(test.args)...)...)
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(s.port)+`": {"headers": {"X-Key": "canary"}`+option+`}}`)
				for range 2 { // the second handshake could resume a session
					res, text := proxytest.Get(t, l.HTTPClient(s.port, false), "https://"+proxytest.HostPort(s.port)+"/", nil)
					if (res.StatusCode == 200) != strings.Contains(want, "Cipher is") || !strings.Contains(res.Status+text, want) {
						t.Errorf("%d %s, want %q", res.StatusCode, text, want)
					}
				}
			})
		}
	}
}

// TestAttackProbesOfOldServers: a server without a common cipher suite is probed for its offer once a minute, whatever the rule.
func TestAttackProbesOfOldServers(t *testing.T) {
	t.Parallel()
	for _, option := range []string{"", `, "upstream_tls": "legacy"`} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		var conns atomic.Int32
		config := &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}, GetCertificate: l.Upstream.ForHello}
		port := l.RawListen(config, func(c net.Conn, in *bufio.Reader) {
			conns.Add(1)
			_, _ = in.ReadByte()
		})
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": "canary"}`+option+`}}`)
		client := l.HTTPClient(port, false)
		for range 4 {
			if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 502 {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		}
		if got := conns.Load(); got != 5 {
			t.Errorf("%q: %d connections for four requests, want five", option, got)
		}
	}
}

// TestAttackLegacyConnectionsAreNotShared: a request under an alternative without upstream_tls: legacy never uses a connection that was made
// under one with it.
func TestAttackLegacyConnectionsAreNotShared(t *testing.T) {
	t.Parallel()
	chain := newChain(t, rsaKey(t, 2048), ecdsaKey(t), nil)
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) {
			c.Roots = x509.NewCertPool()
			c.Roots.AddCert(chain.root)
		})
		var conns atomic.Int32
		old := []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}
		port := l.RawListen(&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: old, Certificates: []tls.Certificate{chain.leaf}, NextProtos: []string{"http/1.1"}}, func(c net.Conn, in *bufio.Reader) {
			for first := true; ; first = false {
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				if first {
					conns.Add(1)
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		})
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": [
			{"match": {"path": {"prefix": "/old"}}, "headers": {"X-Key": "canary"}, "upstream_tls": "legacy"}, {"headers": {"X-Key": "canary"}}]}`)
		client, url := l.HTTPClientLater(port, h2), "https://"+proxytest.HostPort(port)
		for range 3 {
			for path, status := range map[string]int{"/old": 200, "/new": 502} {
				if res, text := proxytest.Get(t, client, url+path, nil); res.StatusCode != status {
					t.Errorf("HTTP/2 %v: %s: %d %s", h2, path, res.StatusCode, text)
				}
			}
		}
		if got := conns.Load(); got != 1 {
			t.Errorf("HTTP/2 %v: %d connections for three requests under the rule, want one", h2, got)
		}
	}
}
