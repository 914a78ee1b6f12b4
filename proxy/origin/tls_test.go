package origin_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/origin"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxytest"
)

func TestUpstreamIsVerified(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("*.example"))
	good := r.TLSServer("good.example")
	for name, at := range map[string]netip.AddrPort{"good.example": good, "other.example": good} {
		r.Names.Set(name, at.Addr())
	}
	d := func(name string) error {
		c, err := r.Core.Origins.DialTLS(context.Background(), r.Box, r.Target(name), nil)
		if err == nil {
			if got := origin.Start(t, c); got != nil {
				t.Errorf("%d bytes of the handshake are kept", len(got))
			}
			c.Close()
		}
		return err
	}
	if err := d("good.example"); err != nil {
		t.Error(err)
	}
	var up *problem.Upstream
	if err := d("other.example"); !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS {
		t.Errorf("a certificate for another name: %v", err)
	}
	r.With(func(c *proxy.Config) { c.Roots = r.BoxCA.Pool() })
	if err := d("good.example"); !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS {
		t.Errorf("a certificate of an authority that is not trusted: %v", err)
	}
}

// TestAlertsOfServers: if a server ends the connection with a TLS alert, the error explains the alert, even if it arrives after
// the gateway has completed the handshake.
func TestAlertsOfServers(t *testing.T) {
	t.Parallel()
	both := []string{"h2", "http/1.1"}
	for what, test := range map[string]struct {
		config *tls.Config
		want   string
	}{
		"no certificate, 1.3":      {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAnyClientCert}, "the server asks for a client certificate"},
		"no certificate, 1.3, h1":  {&tls.Config{NextProtos: both[1:], ClientAuth: tls.RequireAnyClientCert}, "the server asks for a client certificate"},
		"no certificate, 1.2":      {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, "or it asks for a client certificate"},
		"a certificate of another": {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}, "the server does not accept the client certificate"},
		"an old version":           {&tls.Config{NextProtos: both, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "the server offers TLS 1.1 at most; the gateway needs TLS 1.2 or 1.3"},
		"no cipher suite":          {&tls.Config{NextProtos: both, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_RC4_128_SHA}}, "no way to encrypt in common"},
		"no protocol":              {&tls.Config{NextProtos: []string{"imap"}}, "the server does not speak the protocol of the request"},
		"anything else, 1.3":       {&tls.Config{NextProtos: both, CurvePreferences: []tls.CurveID{tls.CurveP521}, GetConfigForClient: noConfig}, "the server refused the TLS handshake"},
		"what is not an alert":     {nil, "the server closed the connection"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			if test.config != nil {
				test.config.GetCertificate = l.Upstream.ForHello
			}
			port := l.RawListen(nil, func(c net.Conn, r *bufio.Reader) {
				if test.config == nil {
					_, _ = r.ReadByte()
					return
				}
				if _, err := tls.Server(c, test.config).Read(make([]byte, 1)); err == nil {
					t.Error("the server was sent a request")
				}
				_, _ = io.Copy(io.Discard, c) // closing with unread data would reset the connection and discard the alert
			})
			identity := proxytest.IdentityText(t, l.Upstream.Certificate(t, "client"))
			l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"identity": proxytest.Fixed(identity)} })
			if l.Policy(proxytest.AllowAll, proxytest.Intercepted(port)); strings.HasPrefix(what, "a certificate") {
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {}, "client_certificate": {"certificate": {"secret": "identity"}, "key": {"secret": "identity"}}}}`)
			}
			for _, h2 := range []bool{false, true} {
				res, text := proxytest.Get(t, l.HTTPClientLater(port, h2), "https://"+proxytest.HostPort(port)+"/", nil)
				if res.StatusCode != 502 || !strings.Contains(text, test.want) {
					t.Errorf("h2 %v: %d %s", h2, res.StatusCode, text)
				}
			}
		})
	}
}

func noConfig(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, io.ErrNoProgress }

// TestAttackServersLongHandshakeMessages: the gateway abandons the handshake with a server that sends a certificate message of
// 192 KiB, which crypto/tls would buffer whole, or of 40 KiB. A chain of 24 KiB is accepted.
func TestAttackServersLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more   int // certificates beside the server's own
		status int
	}{"as is usual": {0, 200}, "a long chain": {24 << 10, 200}, "too long": {40 << 10, 502}, "far too long": {192 << 10, 502}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return longChain(l, hello, c.more) }
			port := l.RawListen(&tls.Config{GetCertificate: chain}, func(c net.Conn, r *bufio.Reader) {
				for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
					var err error
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwire"))
			})
			l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
			res, text := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
			if res.StatusCode != c.status {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
	}
}

// TestAttackUpstreamProxiesLongHandshakeMessages is the same for a proxy that connections go by.
func TestAttackUpstreamProxiesLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more  int
		asked bool
	}{"a long chain": {24 << 10, true}, "too long": {192 << 10, false}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return longChain(l, hello, c.more) }
			var asked atomic.Bool
			port := l.RawListen(&tls.Config{GetCertificate: chain}, func(_ net.Conn, r *bufio.Reader) {
				_, err := r.Peek(1)
				asked.Store(err == nil)
			})
			l.Rules(by("https://proxy.test:"+strconv.Itoa(int(port))), "{}")
			res, text := proxytest.Get(t, l.HTTPClient(port, false), "http://"+proxytest.HostPort(port)+"/", nil)
			if res.StatusCode != 502 || asked.Load() != c.asked {
				t.Errorf("the handshake was completed: %v; %d %s", asked.Load(), res.StatusCode, text)
			}
		})
	}
}

// TestAttackLongSessions: the gateway resumes a session, but does not keep one with a long ticket: a server could fill the memory
// with many of them.
func TestAttackLongSessions(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		more    int // bytes of the ticket
		resumed bool
	}{"as is usual": {0, true}, "long": {13 << 10, false}} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(what+", "+tls.VersionName(version), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				config := &tls.Config{GetCertificate: l.Upstream.ForHello, MaxVersion: version}
				config.WrapSession = func(cs tls.ConnectionState, ss *tls.SessionState) ([]byte, error) {
					ticket, err := config.EncryptTicket(cs, ss)
					return append(ticket, make([]byte, c.more)...), err
				}
				config.UnwrapSession = func(ticket []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
					return config.DecryptTicket(ticket[:max(0, len(ticket)-c.more)], cs)
				}
				var resumed, full atomic.Int32
				port := l.RawListen(config, func(c net.Conn, r *bufio.Reader) {
					for line := " "; len(line) > 0; line = strings.TrimSpace(line) {
						var err error
						if line, err = r.ReadString('\n'); err != nil {
							return
						}
					}
					if c.(*tls.Conn).ConnectionState().DidResume {
						resumed.Add(1)
					} else {
						full.Add(1)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwire")
				})
				l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
				client := l.HTTPClient(port, false)
				for range 3 {
					if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
						t.Fatalf("%d %s", res.StatusCode, text)
					}
				}
				if (resumed.Load() > 0) != c.resumed || full.Load() == 0 {
					t.Errorf("%d handshakes were resumed, and %d full", resumed.Load(), full.Load())
				}
			})
		}
	}
}

// bareTLS is a server of TLS 1.2 that has one cipher suite, ECDHE-ECDSA-AES128-GCM-SHA256, and the extensions that it is given: crypto/tls
// and OpenSSL always support secure renegotiation.
type bareTLS struct {
	net.Conn
	in         *bufio.Reader
	transcript []byte // of the handshake
	finished   []byte // what both sides have proved it by
	ciphers    [2]cipher.AEAD
	nonces     [2][]byte // the beginning of each
	sequence   [2]uint64
}

const (
	fromClient = iota
	fromServer
)

const (
	recordChange    = 20
	recordHandshake = 22
	recordData      = 23
)

// read returns the content of the next record.
func (s *bareTLS) read(kind byte) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(s.in, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(s.in, body); err != nil {
		return nil, err
	}
	if head[0] != kind {
		return nil, errors.New("another kind of record")
	}
	if s.ciphers[fromClient] == nil || kind == recordChange {
		return body, nil
	}
	return s.ciphers[fromClient].Open(nil, append(slices.Clone(s.nonces[fromClient]), body[:8]...), body[8:], s.additional(fromClient, kind, len(body)-8-16))
}

func (s *bareTLS) additional(from int, kind byte, n int) []byte {
	b := append(binary.BigEndian.AppendUint64(nil, s.sequence[from]), kind, 3, 3)
	s.sequence[from]++
	return binary.BigEndian.AppendUint16(b, uint16(n))
}

func (s *bareTLS) write(kind byte, body []byte) {
	if s.ciphers[fromServer] != nil && kind != recordChange {
		own := binary.BigEndian.AppendUint64(nil, s.sequence[fromServer])
		body = append(own, s.ciphers[fromServer].Seal(nil, append(slices.Clone(s.nonces[fromServer]), own...), body, s.additional(fromServer, kind, len(body)))...)
	}
	_, _ = s.Write(append(binary.BigEndian.AppendUint16([]byte{kind, 3, 3}, uint16(len(body))), body...))
}

// say sends a message of the handshake.
func (s *bareTLS) say(kind byte, body []byte) {
	n := len(body)
	message := append([]byte{kind, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
	s.transcript = append(s.transcript, message...)
	s.write(recordHandshake, message)
}

// hear returns the next message of the handshake without its header.
func (s *bareTLS) hear() ([]byte, error) {
	message, err := s.read(recordHandshake)
	if err != nil || len(message) < 4 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	s.transcript = append(s.transcript, message...)
	return message[4:], nil
}

// prf is the pseudorandom function of TLS 1.2 (RFC 5246, 5).
func prf(secret []byte, label string, seed []byte, n int) (out []byte) {
	sum := func(parts ...[]byte) []byte {
		h := hmac.New(sha256.New, secret)
		for _, p := range parts {
			h.Write(p)
		}
		return h.Sum(nil)
	}
	seed = append([]byte(label), seed...)
	for a := sum(seed); len(out) < n; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:n]
}

// handshake makes the handshake with a client.
func (s *bareTLS) handshake(chain chained, extensions []byte) error {
	hello, err := s.hear()
	if err != nil {
		return err
	}
	clients, own := hello[2:34], make([]byte, 32)
	_, _ = rand.Read(own)
	answer := append(append([]byte{3, 3}, own...), 0, 0xc0, 0x2b, 0)
	s.say(2, append(binary.BigEndian.AppendUint16(answer, uint16(len(extensions))), extensions...))
	der := chain.leaf.Certificate[0]
	length := func(n int) []byte { return []byte{byte(n >> 16), byte(n >> 8), byte(n)} }
	s.say(11, append(append(length(len(der)+3), length(len(der))...), der...))
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	exchange := append([]byte{3, 0, 29, 32}, key.PublicKey().Bytes()...)
	sum := sha256.Sum256(slices.Concat(clients, own, exchange))
	signature, err := chain.leaf.PrivateKey.(crypto.Signer).Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return err
	}
	s.say(12, append(append(exchange, 4, 3, 0, byte(len(signature))), signature...))
	s.say(14, nil)
	public, err := s.hear()
	if err != nil {
		return err
	}
	theirs, err := ecdh.X25519().NewPublicKey(public[1:])
	if err != nil {
		return err
	}
	shared, err := key.ECDH(theirs)
	if err != nil {
		return err
	}
	return s.encrypt(prf(shared, "master secret", slices.Concat(clients, own), 48), slices.Concat(own, clients))
}

// encrypt completes a handshake.
func (s *bareTLS) encrypt(master, randoms []byte) error {
	if _, err := s.read(recordChange); err != nil {
		return err
	}
	keys := prf(master, "key expansion", randoms, 2*16+2*4)
	for i := range s.ciphers {
		block, err := aes.NewCipher(keys[16*i : 16*i+16])
		if err != nil {
			return err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return err
		}
		s.nonces[i] = keys[32+4*i : 36+4*i]
		if i == fromServer {
			proof, err := s.hear()
			if err != nil {
				return err
			}
			s.finished = proof
			s.write(recordChange, []byte{1})
		}
		s.ciphers[i] = aead
	}
	sum := sha256.Sum256(s.transcript)
	proof := prf(master, "server finished", sum[:], 12)
	s.say(20, proof)
	s.finished = append(slices.Clone(s.finished), proof...)
	return nil
}

// TestAttackServersWithoutSecureRenegotiation: a server that may take the request as the continuation of an attacker's data
// (CVE-2009-3555) gets no secret.
func TestAttackServersWithoutSecureRenegotiation(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		extensions []byte
		status     int
	}{"without": {nil, 502}, "with": {[]byte{0xff, 1, 0, 1, 0}, 200}, "after another": {[]byte{0, 11, 0, 2, 1, 0, 0xff, 1, 0, 1, 0}, 200}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			chain := newChain(t, ecdsaKey(t), ecdsaKey(t), nil)
			l.With(func(c *proxy.Config) {
				c.Roots = x509.NewCertPool()
				c.Roots.AddCert(chain.root)
			})
			var secrets atomic.Int32
			port := l.RawListen(nil, func(conn net.Conn, r *bufio.Reader) {
				s := &bareTLS{Conn: conn, in: r}
				if s.handshake(chain, c.extensions) != nil {
					return
				}
				if request, err := s.read(recordData); err == nil {
					if bytes.Contains(request, []byte("s3cret")) {
						secrets.Add(1)
					}
					s.write(recordData, []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
				}
			})
			l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
			res, text := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
			if res.StatusCode != c.status || c.status == 502 && !strings.Contains(text, "does not support secure renegotiation") {
				t.Errorf("%d %s", res.StatusCode, text)
			}
			if (secrets.Load() > 0) != (c.status == 200) {
				t.Errorf("the secret was sent %d times", secrets.Load())
			}
			if res.StatusCode == 502 {
				l.WantReason(name.ReasonUpstreamTLS)
			}
		})
	}
}

// TestAttackAnotherServerAfterTheRequest: a server that asks for another handshake and then presents another certificate, for the same name
// and of the same authority, is not taken for the one that was verified.
func TestAttackAnotherServerAfterTheRequest(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	ca := ecdsaKey(t)
	first := newChain(t, ecdsaKey(t), ca, nil)
	second := newChain(t, ecdsaKey(t), ca, nil)
	l.With(func(c *proxy.Config) {
		c.Roots = x509.NewCertPool()
		c.Roots.AddCert(first.root)
		c.Roots.AddCert(second.root)
	})
	var refused atomic.Int32
	port := l.RawListen(nil, func(conn net.Conn, r *bufio.Reader) {
		s := &bareTLS{Conn: conn, in: r}
		if s.handshake(first, []byte{0xff, 1, 0, 1, 0}) != nil {
			return
		}
		if _, err := s.read(recordData); err != nil {
			return
		}
		s.write(recordHandshake, []byte{0, 0, 0, 0}) // HelloRequest
		s.transcript = nil
		if s.handshake(second, slices.Concat([]byte{0xff, 1, 0, 25, 24}, s.finished)) == nil {
			s.write(recordData, []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
			return
		}
		refused.Add(1)
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	res, text := proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
	if res.StatusCode != 502 || !strings.Contains(text, "certificate changed when it asked for another handshake") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	proxytest.Await(t, "the end of the handshake", func() bool { return refused.Load() > 0 })
}
