package origin

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// This file detects the offer of a server that shares no way to encrypt with the gateway, to explain the error: the
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
