package origin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// DialTLS dials d and performs a TLS handshake that verifies the server to be d.name against the configured roots, and
// presents the client certificate of d, if it has one. alpn lists the protocols to offer, most preferred first. Errors are
// of type *[policy.DeniedError] or *[problem.Upstream].
//
// Some servers and firewalls reset or drop a ClientHello that does not fit into one packet, which is the case with a
// post-quantum key share. A server that sends no byte in answer gets a second, small hello on a new connection, and is
// remembered.
func (p *Origins) DialTLS(ctx context.Context, box *policy.Box, d Target, alpn []string) (*socket.Terminated, error) {
	if d.name.IsZero() {
		return nil, &problem.Upstream{Reason: name.ReasonUpstreamTLS, Err: ErrNoName}
	}
	at, known := host{d.name, d.Asked.Port}, p.hostsOf(box.ID)
	h := handshake{alpn: alpn}
	_, h.small = known.hellos.find(at)
	conn, silent, err := p.handshake(ctx, box, d, &h)
	if silent && !h.small {
		h.small = true
		again, still, err2 := p.handshake(ctx, box, d, &h)
		if err2 == nil {
			known.hellos.note(at, struct{}{}, smallTime)
		}
		if !still {
			conn, err = again, err2
		}
	}
	if err != nil {
		return nil, p.explain(ctx, box, d, known, err)
	}
	return conn, nil
}

// handshake are the parameters of a handshake.
type handshake struct {
	alpn     []string
	small    bool      // with a ClientHello that fits one packet
	deadline time.Time // for both attempts, counted from the first connection
}

// smallGroups are offered in a small hello: a key share of ML-KEM has 1,216 bytes.
var smallGroups = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}

// handshake dials d and makes one attempt. silent is set if it failed before the server had sent a byte.
func (p *Origins) handshake(ctx context.Context, box *policy.Box, d Target, h *handshake) (conn *socket.Terminated, silent bool, err error) {
	raw, err := p.Dial(ctx, box, d)
	if err != nil {
		return nil, false, err
	}
	if h.deadline.IsZero() {
		h.deadline = time.Now().Add(p.cfg.HandshakeTimeout)
	}
	var made *socket.Terminated
	config, check := p.clientConfig(box, d, h, func() []byte { return made.Start() })
	made = socket.Initiate(direct(raw), config)
	ctx, cancel := context.WithDeadline(ctx, h.deadline)
	defer cancel()
	attempt, abandon := context.WithCancel(ctx)
	defer abandon()
	if !h.small {
		waiting := time.AfterFunc(time.Until(h.deadline)/3, func() {
			if !made.HasReceived() {
				abandon()
			}
		})
		defer waiting.Stop()
	}
	err = made.HandshakeContext(attempt)
	if err == nil {
		err = check()
	}
	if err != nil {
		_ = raw.Close()
		silent = !made.HasReceived() && ctx.Err() == nil
		return nil, silent, &problem.Upstream{Reason: name.ReasonUpstreamTLS, Name: d.shown, Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	made.Established()
	return made, false, nil
}

// clientConfig returns the configuration of one connection, and a check to run after its handshake.
//
// An HTTP/1.1 server may request one renegotiation, for example to ask for a client certificate for some paths. crypto/tls
// accepts it if the server's certificate stays the same. HTTP/2 forbids it (RFC 9113, 9.2.1).
func (p *Origins) clientConfig(box *policy.Box, d Target, h *handshake, start func() []byte) (config *tls.Config, check func() error) {
	config = &tls.Config{
		ServerName:         d.name.String(),
		RootCAs:            p.cfg.Roots,
		NextProtos:         h.alpn,
		MinVersion:         tls.VersionTLS12,
		Time:               fault.Now,
		ClientSessionCache: p.sessionsOf(box.ID),
	}
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if cs.NegotiatedProtocol != "h2" {
			config.Renegotiation = tls.RenegotiateOnceAsClient // the configuration is used for this connection only
		}
		return verify(cs, start())
	}
	if d.legacy { // whose sessions no other connection may resume
		config.CipherSuites, config.ClientSessionCache = LegacySuites, nil
	}
	if h.small {
		config.CurvePreferences, config.ClientSessionCache = smallGroups, nil // tickets may have any size
	}
	return config, d.identity.present(config)
}

// LegacySuites are the cipher suites of TLS 1.2 for hosts with upstream_tls or client_tls: legacy, the current ones included. Their order
// does not matter: crypto/tls prefers current ones, and the handshake detects changes of the list on the path (RFC 5246, 7.4.9). TLS 1.3 has its own.
//
// Not among them are RC4 (RFC 7465) and 3DES (CVE-2016-2183).
var LegacySuites = func() (ids []uint16) {
	for _, s := range tls.CipherSuites() {
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) {
			ids = append(ids, s.ID)
		}
	}
	return append(ids,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_RSA_WITH_AES_128_CBC_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA,
	)
}()

// IsLegacySuite reports whether a cipher suite is one of [LegacySuites] and no current one.
func IsLegacySuite(id uint16) bool {
	return slices.ContainsFunc(tls.InsecureCipherSuites(), func(s *tls.CipherSuite) bool { return s.ID == id })
}

// direct returns a dialled connection with direct reads and writes.
func direct(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *net.TCPConn:
		return socket.NewDirect(c)
	case *passage:
		c.Conn = direct(c.Conn)
	}
	return c
}

// ErrNoName refuses TLS without a name, or with a name that was not judged.
var ErrNoName = error(problem.Fixed("the TLS handshake names no host this connection was judged for"))

// This part detects the offer of a server that shares no way to encrypt with the gateway, to explain the error: the
// server's alert does not. It makes another connection and sends a ClientHello that offers more than the gateway supports.
// No other data is sent, and the answer is used for an error text only.

const (
	offerPatience = 3 * time.Second
	maxOffer      = 64 << 10 // bytes read of an answer
)

// explain adds the server's offer to the error of a handshake that failed because the two sides share no parameters.
func (p *Origins) explain(ctx context.Context, box *policy.Box, d Target, known *hosts, err error) error {
	var up *problem.Upstream
	if !errors.As(err, &up) || up.Reason != name.ReasonUpstreamTLS || !problem.NothingInCommon(up.Err) {
		return err
	}
	at := host{d.name, d.Asked.Port}
	o, asked := known.offers.find(at)
	if !asked {
		o = p.ask(ctx, box, d)
		known.offers.note(at, o, offersTime)
	}
	text := o.missing(d.legacy)
	if text == "" {
		return err
	}
	return &problem.Upstream{Reason: up.Reason, Name: up.Name, Err: fmt.Errorf("%w: %w", problem.Fixed(text), up.Err)}
}

// offer is a server's choice of parameters; the zero value if it did not answer.
type offer struct {
	version, suite uint16
	group          tls.CurveID // 0: no key exchange with a group, or unknown
}

// ask sends the hello to a server and returns its offer.
func (p *Origins) ask(ctx context.Context, box *policy.Box, d Target) (o offer) {
	ctx, cancel := context.WithTimeout(ctx, offerPatience)
	defer cancel()
	conn, err := p.Dial(ctx, box, d)
	if err != nil {
		return o
	}
	defer socket.Abort(conn)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	hello, err := wideHello(d.name.String())
	if err != nil {
		return o
	}
	if _, err := conn.Write(hello); err == nil {
		o.read(conn)
	}
	return o
}

// Suites and groups that some servers require and that crypto/tls does not have or name.
var (
	wideSuites = map[uint16]string{
		0x009e: "DHE-RSA-AES128-GCM-SHA256", 0x009f: "DHE-RSA-AES256-GCM-SHA384", 0x0067: "DHE-RSA-AES128-SHA256", 0x006b: "DHE-RSA-AES256-SHA256",
		0x0033: "DHE-RSA-AES128-SHA", 0x0039: "DHE-RSA-AES256-SHA", 0xccaa: "DHE-RSA-CHACHA20-POLY1305",
		0x009c: "AES128-GCM-SHA256 (RSA key exchange)", 0x009d: "AES256-GCM-SHA384 (RSA key exchange)",
		0x003c: "AES128-SHA256 (RSA key exchange)", 0x003d: "AES256-SHA256 (RSA key exchange)",
		0x002f: "AES128-SHA (RSA key exchange)", 0x0035: "AES256-SHA (RSA key exchange)", 0x000a: "DES-CBC3-SHA (RSA key exchange)",
		0xc027: "ECDHE-RSA-AES128-SHA256", 0xc028: "ECDHE-RSA-AES256-SHA384", 0xc023: "ECDHE-ECDSA-AES128-SHA256", 0xc024: "ECDHE-ECDSA-AES256-SHA384",
		0xc0ad: "ECDHE-ECDSA-AES256-CCM", 0xc0ac: "ECDHE-ECDSA-AES128-CCM", 0x1304: "AES-128-CCM", 0x1305: "AES-128-CCM-8",
	}
	wideGroups = map[tls.CurveID]string{
		30: "X448", 256: "ffdhe2048", 257: "ffdhe3072", 258: "ffdhe4096", 22: "secp256k1",
		26: "brainpoolP256r1", 27: "brainpoolP384r1", 28: "brainpoolP512r1", 21: "P-224",
	}
	ownGroups   = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519MLKEM768}
	wideSchemes = []uint16{
		0x0403, 0x0503, 0x0603, 0x0807, 0x0808, 0x0804, 0x0805, 0x0806, 0x0809, 0x080a, 0x080b, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201,
	}
)

// wideHello returns a record with a ClientHello that offers all of them and TLS 1.0 to 1.3, without a key share: the
// handshake is not completed.
func wideHello(name string) ([]byte, error) {
	random := make([]byte, 64)
	_, _ = rand.Read(random) // never fails
	var b cryptobyte.Builder
	b.AddUint8(22)
	b.AddUint16(tls.VersionTLS10)
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint8(1) // ClientHello
		b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddUint16(tls.VersionTLS12)
			b.AddBytes(random[:32])
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(random[32:]) })
			b.AddUint16LengthPrefixed(addSuites)
			b.AddBytes([]byte{1, 0}) // no compression
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { addWideExtensions(b, name) })
		})
	})
	return b.Bytes()
}

func addSuites(b *cryptobyte.Builder) {
	for _, s := range tls.CipherSuites() {
		b.AddUint16(s.ID)
	}
	for id := range wideSuites {
		b.AddUint16(id)
	}
	b.AddUint16(0x00ff) // renegotiation is secure (RFC 5746)
}

func addWideExtensions(b *cryptobyte.Builder, name string) {
	extension := func(id uint16, value cryptobyte.BuilderContinuation) {
		b.AddUint16(id)
		b.AddUint16LengthPrefixed(value)
	}
	extension(0, func(b *cryptobyte.Builder) { // server_name
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddUint8(0)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
		})
	})
	extension(10, func(b *cryptobyte.Builder) { // supported_groups
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, g := range ownGroups {
				b.AddUint16(uint16(g))
			}
			for g := range wideGroups {
				b.AddUint16(uint16(g))
			}
		})
	})
	extension(11, func(b *cryptobyte.Builder) { b.AddBytes([]byte{1, 0}) }) // points are uncompressed
	extension(13, func(b *cryptobyte.Builder) {                             // signature_algorithms
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, s := range wideSchemes {
				b.AddUint16(s)
			}
		})
	})
	extension(43, func(b *cryptobyte.Builder) { // supported_versions
		b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) {
			for v := uint16(tls.VersionTLS13); v >= tls.VersionTLS10; v-- {
				b.AddUint16(v)
			}
		})
	})
	extension(51, func(b *cryptobyte.Builder) { b.AddUint16(0) }) // key_share: the server names a group (RFC 8446, 4.1.4)
}

// read reads the answer up to the group of the key exchange.
func (o *offer) read(conn net.Conn) {
	messages := &handshakeReader{in: io.LimitReader(conn, maxOffer)}
	for {
		kind, body, ok := messages.next()
		if !ok {
			return
		}
		switch kind {
		case 2: // ServerHello
			o.hello(body)
			if o.version == tls.VersionTLS13 || !strings.HasPrefix(tls.CipherSuiteName(o.suite), "TLS_ECDHE") {
				return
			}
		case 12: // ServerKeyExchange (RFC 8422, 5.4)
			var curve uint8
			var group uint16
			s := cryptobyte.String(body)
			if s.ReadUint8(&curve) && curve == 3 && s.ReadUint16(&group) {
				o.group = tls.CurveID(group)
			}
			return
		case 14: // ServerHelloDone
			return
		}
	}
}

func (o *offer) hello(body []byte) {
	s := cryptobyte.String(body)
	var version, suite uint16
	var session, extensions cryptobyte.String
	if !s.ReadUint16(&version) || !s.Skip(32) || !s.ReadUint8LengthPrefixed(&session) || !s.ReadUint16(&suite) || !s.Skip(1) {
		return
	}
	o.version, o.suite = version, suite
	if !s.ReadUint16LengthPrefixed(&extensions) {
		return
	}
	for !extensions.Empty() {
		var id uint16
		var value cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&value) {
			return
		}
		switch id {
		case 43:
			value.ReadUint16(&o.version)
		case 51:
			var group uint16
			value.ReadUint16(&group)
			o.group = tls.CurveID(group)
		}
	}
}

// handshakeReader reads a server's unencrypted handshake messages.
type handshakeReader struct {
	in   io.Reader
	left []byte
}

// next returns the next message; ok is false at the end, or at anything else such as an alert.
func (r *handshakeReader) next() (kind byte, body []byte, ok bool) {
	for {
		s := cryptobyte.String(r.left)
		var message cryptobyte.String
		if s.ReadUint8(&kind) && s.ReadUint24LengthPrefixed(&message) {
			r.left = s
			return kind, message, true
		}
		var head [5]byte
		if _, err := io.ReadFull(r.in, head[:]); err != nil || head[0] != 22 {
			return 0, nil, false
		}
		record := make([]byte, int(head[3])<<8|int(head[4]))
		if _, err := io.ReadFull(r.in, record); err != nil {
			return 0, nil, false
		}
		r.left = append(r.left, record...)
	}
}

// missing describes the part of the offer that the gateway does not support, or returns "". legacy reports whether the gateway
// offered [LegacySuites].
func (o offer) missing(legacy bool) string {
	suite := wideSuites[o.suite]
	spoken := slices.ContainsFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.ID == o.suite })
	switch {
	case o == offer{}:
		return ""
	case o.version < tls.VersionTLS12:
		return fmt.Sprintf("the server offers %s at most; the gateway needs TLS 1.2 or 1.3", tls.VersionName(o.version))
	case !spoken && slices.Contains(LegacySuites, o.suite) && legacy:
		return ""
	case !spoken && slices.Contains(LegacySuites, o.suite):
		return fmt.Sprintf("the server offers %s with %s, which the gateway offers only if the header rule of the host has upstream_tls: legacy", tls.VersionName(o.version), suite)
	case !spoken && suite != "":
		return fmt.Sprintf("the server offers %s with %s; the gateway needs a cipher suite of ECDHE with AES-GCM or ChaCha20-Poly1305", tls.VersionName(o.version), suite)
	case o.group != 0 && !slices.Contains(ownGroups, o.group) && wideGroups[o.group] != "":
		return fmt.Sprintf("the server offers %s with the group %s; the gateway needs X25519, P-256, P-384, P-521 or X25519MLKEM768", tls.VersionName(o.version), wideGroups[o.group])
	}
	return ""
}

// ErrRenegotiation refuses a server that cannot distinguish a new handshake from one that continues another client's
// session.
var ErrRenegotiation = error(problem.Fixed("the server does not support secure renegotiation (RFC 5746): what another client says could become the beginning of the request"))

// verify refuses servers that crypto/tls accepts, but OpenSSL does not. start is the beginning of the server's data. It is
// meant for tls.Config.VerifyConnection.
//
// A server that renegotiates without RFC 5746 may treat the request as the continuation of data that a man in the middle
// has sent, and reveal it with the headers that the gateway has set (CVE-2009-3555). Clients cannot detect whether a server
// would.
func verify(cs tls.ConnectionState, start []byte) error {
	if cs.Version < tls.VersionTLS13 && !renegotiatesSecurely(start) {
		return ErrRenegotiation
	}
	return problem.WeakKey(cs)
}

// renegotiatesSecurely reports whether the ServerHello at the beginning of start has the extension of RFC 5746, 3.4.
func renegotiatesSecurely(start []byte) bool {
	kind, body, ok := (&handshakeReader{in: bytes.NewReader(start)}).next()
	hello := cryptobyte.String(body)
	var session, extensions cryptobyte.String
	if !ok || kind != 2 || !hello.Skip(2+32) || !hello.ReadUint8LengthPrefixed(&session) || !hello.Skip(2+1) || !hello.ReadUint16LengthPrefixed(&extensions) {
		return false
	}
	for !extensions.Empty() {
		var id uint16
		var value cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&value) {
			return false
		}
		if id == 0xff01 {
			return true
		}
	}
	return false
}

const (
	maxSessions = 128      // TLS sessions kept for a box
	maxSession  = 12 << 10 // bytes of one: the ticket, which may have any length, and the server's certificates; typically about 8,000
)

// sessions stores the TLS sessions of a box, except long ones. Servers with long ones get a full handshake each time.
type sessions struct {
	tls.ClientSessionCache
}

func newSessions() *sessions { return &sessions{tls.NewLRUClientSessionCache(maxSessions)} }

// Put implements [tls.ClientSessionCache].
func (s *sessions) Put(key string, of *tls.ClientSessionState) {
	if of == nil || sizeOf(of) <= maxSession {
		s.ClientSessionCache.Put(key, of)
	}
}

// sizeOf returns the length of a session in bytes, or more than maxSession if it cannot be determined.
func sizeOf(of *tls.ClientSessionState) int {
	ticket, state, err := of.ResumptionState()
	if err != nil || state == nil || len(ticket) > maxSession {
		return maxSession + 1
	}
	rest, err := state.Bytes()
	if err != nil {
		return maxSession + 1
	}
	return len(ticket) + len(rest)
}

// Identity is a client certificate with its key, for authenticating the gateway to a server. Connections with an identity
// are used only for requests with the same one, and connections without for requests without.
type Identity struct {
	certificate tls.Certificate
	sum         [sha256.Size]byte // of certificate and key as configured
}

// NewIdentity returns an identity of a certificate with its Leaf, parsed from the values of two secrets.
func NewIdentity(pair tls.Certificate, certificate, key name.Secret) *Identity {
	h, text := sha256.New(), certificate.Reveal()
	_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // writes to a hash never fail
	h.Write([]byte(text))
	h.Write([]byte(key.Reveal()))
	return &Identity{pair, [sha256.Size]byte(h.Sum(nil))}
}

// Expired reports whether the certificate has expired.
func (i *Identity) Expired(now time.Time) bool { return now.After(i.certificate.Leaf.NotAfter) }

// key returns a string that identifies the identity, or "" for nil.
func (i *Identity) key() string {
	if i == nil {
		return ""
	}
	return string(i.sum[:])
}

// ErrUnasked refuses a server that does not request the client certificate that requests to it require.
var ErrUnasked = error(problem.Fixed("the server does not ask for the client certificate"))

// present makes a handshake present the identity, if there is one, and returns a check to run after the handshake.
//
// The handshake neither resumes a session nor can be resumed: a session keeps the certificate that it began with, and
// clients store sessions by the server's name only.
func (i *Identity) present(c *tls.Config) (check func() error) {
	if i == nil {
		return func() error { return nil }
	}
	asked := false
	c.ClientSessionCache = nil
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		return &i.certificate, nil
	}
	return func() error {
		if !asked {
			return ErrUnasked
		}
		return nil
	}
}
