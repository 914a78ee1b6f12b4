// Package offer finds out which parameters of TLS a server has, also ones that crypto/tls does not support: it makes a
// ClientHello that offers more than crypto/tls would, and reads the server's choice. No handshake is completed.
package offer

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/cryptobyte"
)

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

// Offer is a server's choice of parameters; the zero value if it did not answer.
type Offer struct {
	Version, Suite uint16
	Group          tls.CurveID // 0: no key exchange with a group, or unknown
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

// Hello returns a record with a ClientHello that offers all of them and TLS 1.0 to the given version, without a key share:
// the handshake is not completed.
func Hello(name string, newest uint16) ([]byte, error) {
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
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { addWideExtensions(b, name, newest) })
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

func addWideExtensions(b *cryptobyte.Builder, name string, newest uint16) {
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
			for v := newest; v >= tls.VersionTLS10; v-- {
				b.AddUint16(v)
			}
		})
	})
	if newest >= tls.VersionTLS13 {
		extension(51, func(b *cryptobyte.Builder) { b.AddUint16(0) }) // key_share: the server names a group (RFC 8446, 4.1.4)
	}
}

// maxAnswer bounds the bytes read of an answer.
const maxAnswer = 64 << 10

// Read reads the answer to [Hello] up to the group of the key exchange. What it could not read stays zero.
func (o *Offer) Read(conn io.Reader) {
	messages := NewMessages(io.LimitReader(conn, maxAnswer))
	for {
		kind, body, ok := messages.Next()
		if !ok {
			return
		}
		switch kind {
		case 2: // ServerHello
			o.hello(body)
			if o.Version == tls.VersionTLS13 || !strings.HasPrefix(tls.CipherSuiteName(o.Suite), "TLS_ECDHE") {
				return
			}
		case 12: // ServerKeyExchange (RFC 8422, 5.4)
			var curve uint8
			var group uint16
			s := cryptobyte.String(body)
			if s.ReadUint8(&curve) && curve == 3 && s.ReadUint16(&group) {
				o.Group = tls.CurveID(group)
			}
			return
		case 14: // ServerHelloDone
			return
		}
	}
}

func (o *Offer) hello(body []byte) {
	s := cryptobyte.String(body)
	var version, suite uint16
	var session, extensions cryptobyte.String
	if !s.ReadUint16(&version) || !s.Skip(32) || !s.ReadUint8LengthPrefixed(&session) || !s.ReadUint16(&suite) || !s.Skip(1) {
		return
	}
	o.Version, o.Suite = version, suite
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
			value.ReadUint16(&o.Version)
		case 51:
			var group uint16
			value.ReadUint16(&group)
			o.Group = tls.CurveID(group)
		}
	}
}

// Messages reads a server's unencrypted handshake messages. Use [NewMessages].
type Messages struct {
	in   io.Reader
	left []byte
}

// NewMessages returns a reader of the messages in a stream of records.
func NewMessages(in io.Reader) *Messages { return &Messages{in: in} }

// Next returns the next message; ok is false at the end, or at anything else such as an alert.
func (r *Messages) Next() (kind byte, body []byte, ok bool) {
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

// Missing describes the part of the offer that the gateway does not support, or returns "". legacy reports whether the gateway
// offered [LegacySuites].
func (o Offer) Missing(legacy bool) string {
	suite := wideSuites[o.Suite]
	spoken := slices.ContainsFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.ID == o.Suite })
	switch {
	case o == Offer{}:
		return ""
	case o.Version < tls.VersionTLS12:
		return fmt.Sprintf("the server offers %s at most; the gateway needs TLS 1.2 or 1.3", tls.VersionName(o.Version))
	case !spoken && slices.Contains(LegacySuites, o.Suite) && legacy:
		return ""
	case !spoken && slices.Contains(LegacySuites, o.Suite):
		return fmt.Sprintf("the server offers %s with %s, which the gateway offers only if the header rule of the host has upstream_tls: legacy", tls.VersionName(o.Version), suite)
	case !spoken && suite != "":
		return fmt.Sprintf("the server offers %s with %s; the gateway needs a cipher suite of ECDHE with AES-GCM or ChaCha20-Poly1305", tls.VersionName(o.Version), suite)
	case o.Group != 0 && !slices.Contains(ownGroups, o.Group) && wideGroups[o.Group] != "":
		return fmt.Sprintf("the server offers %s with the group %s; the gateway needs X25519, P-256, P-384, P-521 or X25519MLKEM768", tls.VersionName(o.Version), wideGroups[o.Group])
	}
	return ""
}

// Supports reports whether the gateway supports a group.
func Supports(group tls.CurveID) bool { return slices.Contains(ownGroups, group) }

// SuiteName returns the name of a cipher suite, as OpenSSL names those that crypto/tls does not have.
func SuiteName(id uint16) string {
	if name := wideSuites[id]; name != "" {
		return name
	}
	return tls.CipherSuiteName(id)
}

// GroupName returns the name of a group, or its number.
func GroupName(id tls.CurveID) string {
	if name := wideGroups[id]; name != "" {
		return name
	}
	return id.String()
}

// Certificates returns the certificates in an answer to [Hello] of at most TLS 1.2, whose handshake is not encrypted up to
// that point, in DER. It returns nil if the answer has none.
func Certificates(conn io.Reader) (list [][]byte) {
	messages := NewMessages(io.LimitReader(conn, maxAnswer))
	for {
		kind, body, ok := messages.Next()
		if !ok || kind != 2 && kind != 11 { // ServerHello, Certificate (RFC 5246, 7.4.2)
			return nil
		}
		if kind == 2 {
			continue
		}
		s := cryptobyte.String(body)
		var all cryptobyte.String
		if !s.ReadUint24LengthPrefixed(&all) {
			return nil
		}
		for !all.Empty() {
			var one cryptobyte.String
			if !all.ReadUint24LengthPrefixed(&one) {
				return nil
			}
			list = append(list, one)
		}
		return list
	}
}
