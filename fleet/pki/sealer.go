package pki

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"golang.org/x/crypto/chacha20poly1305"

	"boxgate/policy/name"
)

// Sealer seals values that each member of the fleet may open. Its key is derived from the private key of the fleet's authority, which etcd
// has sealed to each member and a token brings to a host that joins. A host that left has known it. Safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer derives the key of a purpose (HKDF-SHA256, RFC 5869). Keys of different purposes do not open each other's values.
func NewSealer(authority name.Secret, purpose string) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, []byte(authority.Reveal()), nil, "boxgate fleet "+purpose, chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, err
	}
	return &Sealer{aead}, nil
}

// Overhead is how many bytes longer a sealed value is.
func (s *Sealer) Overhead() int { return s.aead.NonceSize() + s.aead.Overhead() }

// Seal encrypts a value (XChaCha20-Poly1305). It can be opened at this place, a key of etcd, alone.
func (s *Sealer) Seal(place string, value []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize(), s.Overhead()+len(value))
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	return s.aead.Seal(nonce, nonce, value, []byte(place))
}

// Open decrypts a result of [Sealer.Seal]. The error does not quote the value.
func (s *Sealer) Open(place string, text []byte) ([]byte, error) {
	size := s.aead.NonceSize()
	if len(text) < size {
		return nil, errSealed
	}
	value, err := s.aead.Open(nil, text[:size], text[size:], []byte(place))
	if err != nil {
		return nil, errSealed
	}
	return value, nil
}

// ProveRecipient returns a proof that a holder of the authority's key knows a recipient of [NewWrapKey] as the one of a host. Without it,
// whoever can write to etcd could have secrets sealed to a recipient of their own.
func ProveRecipient(authority name.Secret, founding, host, recipient string) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, []byte(authority.Reveal()), nil, "boxgate fleet recipient", sha256.Size)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	for _, part := range []string{founding, host, recipient} {
		_, _ = mac.Write([]byte(part + "\x00")) // never fails (hash.Hash)
	}
	return mac.Sum(nil), nil
}

// IsProven reports whether proof is one of [ProveRecipient].
func IsProven(authority name.Secret, founding, host, recipient string, proof []byte) bool {
	want, err := ProveRecipient(authority, founding, host, recipient)
	return err == nil && hmac.Equal(want, proof)
}
