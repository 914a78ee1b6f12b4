package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"boxgate/policy/name"
)

// KeyHash is the SHA-256 of a key made by [NewKey]. A slow password hash has no benefit: such a key has 256 random
// bits, so dictionary attacks are impossible, while a slow hash could be used to keep the gateway busy. It must not be
// used for passwords chosen by people.
type KeyHash [sha256.Size]byte

// NewKey makes a random key of 256 bits, in characters that need no quoting in a header or a URL.
func NewKey() name.Secret {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	return name.NewSecret(base64.RawURLEncoding.EncodeToString(b[:]))
}

// HashKey returns the hash under which a key is stored.
func HashKey(key string) KeyHash { return sha256.Sum256([]byte(key)) }

// Matches reports whether h is the hash of key. It takes the same time for every wrong key.
func (h KeyHash) Matches(key string) bool {
	got := HashKey(key)
	return subtle.ConstantTimeCompare(h[:], got[:]) == 1
}

// MarshalText implements [encoding.TextMarshaler].
func (h KeyHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *KeyHash) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(h) {
		return fmt.Errorf("a key hash is %d hexadecimal digits", 2*len(h))
	}
	copy(h[:], b)
	return nil
}
