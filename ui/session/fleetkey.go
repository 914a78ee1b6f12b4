package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"time"

	"boxgate/policy/name"
)

// KeyCookie is the name of the cookie with the API key of the fleet that a session began with. Other hosts of the fleet check that key
// themselves, so calls for their boxes need it. It is sealed with a key that only this process has, and bound to its session: neither the
// memory of the gateway nor the browser keeps the key in the clear.
const KeyCookie = "__Host-boxgate-key"

// maxSealed is the longest value of a [KeyCookie].
const maxSealed = 1 << 10

// newSeal returns a cipher with a new random key.
func newSeal() cipher.AEAD {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return seal
}

// giveKey gives the browser the key of a new session, if it is one of the fleet. Otherwise an earlier one is removed.
func (s *Store) giveKey(w http.ResponseWriter, r *http.Request, e *entry, key string) {
	if !e.caller.Fleet || e.issued || key == "" {
		s.dropKey(w, r)
		return
	}
	sealed := s.seal.Seal(nil, nil, []byte(key), e.hash[:])
	setCookie(w, KeyCookie, base64.RawURLEncoding.EncodeToString(sealed), e.expires.Sub(s.options.Now()))
}

// dropKey removes the key from the browser, if it has one.
func (s *Store) dropKey(w http.ResponseWriter, r *http.Request) {
	if len(r.CookiesNamed(KeyCookie)) > 0 {
		setCookie(w, KeyCookie, "", -time.Second)
	}
}

// fleetKey returns the key of the fleet that a session began with. It is empty without one, and for a cookie that is not the one that this
// process gave to the browser for this session.
func (s *Store) fleetKey(r *http.Request, e *entry) name.Secret {
	found := r.CookiesNamed(KeyCookie)
	if !e.caller.Fleet || e.issued || len(found) != 1 || len(found[0].Value) > maxSealed {
		return name.Secret{}
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(found[0].Value)
	if err != nil {
		return name.Secret{}
	}
	key, err := s.seal.Open(nil, nil, sealed, e.hash[:])
	if err != nil || sha256.Sum256(key) != e.digest {
		return name.Secret{}
	}
	return name.NewSecret(string(key))
}
