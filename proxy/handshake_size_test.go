package proxy_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"net"
	"slices"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/proxy/proxytest"
)

// certificate is the beginning of a handshake message of type certificate with a length of 252 KiB, which crypto/tls would
// buffer as a whole.
func certificate() []byte { return append([]byte{11, 3, 0xf0, 0}, make([]byte, 96<<10)...) }

// lies is the connection of a client that answers the server's flight of a handshake with the beginning of a certificate.
type lies struct {
	net.Conn
	writes int
}

func (l *lies) Write(b []byte) (int, error) {
	if l.writes++; l.writes == 1 {
		return l.Conn.Write(b)
	}
	for part := range slices.Chunk(certificate(), 16<<10) {
		_, _ = l.Conn.Write(append([]byte{22, 3, 3, byte(len(part) >> 8), byte(len(part))}, part...))
	}
	return len(b), nil
}

// sealed returns records with the beginning of a certificate, encrypted with the key of a TLS 1.3 client that has sent no
// other data.
func sealed(t *testing.T, keyLog string) (records []byte) {
	t.Helper()
	_, text, _ := strings.Cut(keyLog, "CLIENT_TRAFFIC_SECRET_0 ")
	text, _, _ = strings.Cut(text, "\n")
	_, text, _ = strings.Cut(text, " ")
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != sha256.Size {
		t.Fatalf("secret %q: %v", text, err)
	}
	expand := func(label string, n int) []byte {
		label = "tls13 " + label
		out, err := hkdf.Expand(sha256.New, secret, string([]byte{0, byte(n), byte(len(label))})+label+"\x00", n)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	block, err := aes.NewCipher(expand("key", 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	iv, n := expand("iv", 12), uint64(0)
	for part := range slices.Chunk(certificate(), 8<<10) {
		nonce := bytes.Clone(iv)
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(iv[4:])^n)
		n++
		length := len(part) + 1 + aead.Overhead()
		head := []byte{23, 3, 3, byte(length >> 8), byte(length)}
		records = append(append(records, head...), aead.Seal(nil, nonce, append(bytes.Clone(part), 22), head)...)
	}
	return records
}

// TestAttackLongHandshakeMessages: a client that begins a handshake message of 252 KiB, during or after the handshake, is
// charged for the data that the gateway may buffer, and loses the connection.
func TestAttackLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]uint16{"during the handshake": tls.VersionTLS12, "after it": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := memory.New(64<<20, 64<<20)
			k := keep(t, budget) // a control with a regular handshake
			if err := k.request(); err != nil {
				t.Fatal(err)
			}
			raw := proxytest.DialTo(t, k.at)
			var keys bytes.Buffer
			cfg := &tls.Config{ServerName: cdn, RootCAs: k.BoxCA.Pool(), MaxVersion: version, KeyLogWriter: &keys, NextProtos: []string{"http/1.1"}}
			if version == tls.VersionTLS12 {
				_ = tls.Client(&lies{Conn: raw}, cfg).Handshake()
			} else {
				c := tls.Client(raw, cfg)
				if err := c.Handshake(); err != nil {
					t.Fatal(err)
				}
				if suite := c.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
					t.Skipf("the cipher suite is %s", tls.CipherSuiteName(suite))
				}
				_, _ = raw.Write(sealed(t, keys.String()))
			}
			k.Want("the end of the connection", func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
		})
	}
}
