package pki

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"golang.org/x/crypto/chacha20poly1305"

	"boxgate/policy/name"
)

// maxSealed bounds a sealed value in bytes.
const maxSealed = 64 << 10

// NewWrapKey makes the wrap key of a host: the identity, which stays on the host, and the recipient, for the other hosts.
func NewWrapKey() (identity name.Secret, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return name.Secret{}, "", err
	}
	return name.NewSecret(id.String()), id.Recipient().String(), nil
}

// RecipientOf returns the recipient of an identity of [NewWrapKey].
func RecipientOf(identity name.Secret) (string, error) {
	id, err := age.ParseX25519Identity(identity.Reveal())
	if err != nil {
		return "", errors.New("the wrap key of this host is not readable") // err could quote it
	}
	return id.Recipient().String(), nil
}

// sealed is the plain text of a sealed value. age does not authenticate a place, so that the place is part of it.
type sealed struct {
	Place string `json:"place"`
	Value []byte `json:"value"`
}

// errSealed is the error of a value that does not open. It does not quote the value.
var errSealed = errors.New("a sealed value of the fleet cannot be opened: it was made for another host or place, or is damaged")

// Seal encrypts a value to a host. It can be opened at this place, a key of etcd, alone.
func Seal(recipient, place string, value name.Secret) ([]byte, error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("the wrap key of a host: %w", err)
	}
	text, err := json.Marshal(sealed{place, []byte(value.Reveal())})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// Open decrypts a result of [Seal].
func Open(identity name.Secret, place string, text []byte) (name.Secret, error) {
	id, err := age.ParseX25519Identity(identity.Reveal())
	if err != nil || len(text) > maxSealed {
		return name.Secret{}, errSealed
	}
	r, err := age.Decrypt(bytes.NewReader(text), id)
	if err != nil {
		return name.Secret{}, errSealed
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxSealed))
	var found sealed
	if err != nil || json.Unmarshal(plain, &found) != nil || found.Place != place {
		return name.Secret{}, errSealed
	}
	return name.NewSecret(string(found.Value)), nil
}

// Token lets one host join a fleet. Its text is secret; its ID is not.
type Token struct{ secret []byte }

// tokenPrefix begins the text of a token, so that scanners for secrets find it.
const tokenPrefix = "bgfleet_"

// tokenBytes is the length of the secret of a token.
const tokenBytes = 32

// NewToken makes a token.
func NewToken() Token {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // never fails (crypto/rand)
	return Token{secret}
}

// ParseToken reads the text of a token. Errors do not quote it.
func ParseToken(text string) (Token, error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	secret, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if !ok || err != nil || len(secret) != tokenBytes {
		return Token{}, fmt.Errorf("this is not a token: it begins with %s, and `gateway fleet token` on a member prints it", tokenPrefix)
	}
	return Token{secret}, nil
}

// Text returns the token for its user.
func (t Token) Text() name.Secret {
	return name.NewSecret(tokenPrefix + base64.RawURLEncoding.EncodeToString(t.secret))
}

// ID returns the public ID of the token, which reveals nothing about it.
func (t Token) ID() string {
	sum := sha256.Sum256(append([]byte("boxgate fleet token id\x00"), t.secret...))
	return hex.EncodeToString(sum[:16])
}

// Seal encrypts a value with the token. It can be opened at this place alone.
func (t Token) Seal(place string, value name.Secret) ([]byte, error) {
	aead, err := t.cipher()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	return aead.Seal(nonce, nonce, []byte(value.Reveal()), []byte(place)), nil
}

// Open decrypts a result of [Token.Seal].
func (t Token) Open(place string, text []byte) (name.Secret, error) {
	aead, err := t.cipher()
	if err != nil || len(text) < aead.NonceSize() || len(text) > maxSealed {
		return name.Secret{}, errSealed
	}
	plain, err := aead.Open(nil, text[:aead.NonceSize()], text[aead.NonceSize():], []byte(place))
	if err != nil {
		return name.Secret{}, errSealed
	}
	return name.NewSecret(string(plain)), nil
}

func (t Token) cipher() (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, t.secret, nil, "boxgate fleet token key", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	return chacha20poly1305.NewX(key)
}
