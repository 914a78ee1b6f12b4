package pki

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// Agreement derives secrets that this host has in common with one other host, by X25519 (RFC 7748) and HKDF (RFC 5869). The hosts need
// only each other's public keys, which are in the directory: a host that left has no secret with any member, and no member has the
// secrets of two others. Safe for concurrent use.
type Agreement struct {
	host string
	key  *ecdh.PrivateKey
}

// SecretSize is the size of a secret in bytes.
const SecretSize = 32

// NewAgreement returns the agreement of a host. Its key is derived from the key of the host's certificates (see [NewHostKey]), and lasts
// as long.
func NewAgreement(host string, hostKey []byte) (*Agreement, error) {
	if _, err := parseKey(hostKey); err != nil {
		return nil, err
	}
	seed, err := hkdf.Key(sha256.New, hostKey, nil, "boxgate fleet agreement of "+host, SecretSize)
	if err != nil {
		return nil, err
	}
	key, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		return nil, err
	}
	return &Agreement{host, key}, nil
}

// Public returns the public key.
func (a *Agreement) Public() []byte { return a.key.PublicKey().Bytes() }

// errAgreement reports a public key with which no secret can be derived. It may be of this host's own record.
var errAgreement = errors.New("the key of the other host is not a public key of X25519")

// Secrets returns two secrets for a purpose: one for messages to the other host, one for messages from it.
func (a *Agreement) Secrets(other string, public []byte, purpose string) (to, from []byte, err error) {
	theirs, err := ecdh.X25519().NewPublicKey(public)
	if err != nil || other == a.host {
		return nil, nil, errAgreement
	}
	shared, err := a.key.ECDH(theirs)
	if err != nil { // all zeros: a point of small order
		return nil, nil, errAgreement
	}
	derive := func(sender, receiver string, keys ...[]byte) ([]byte, error) {
		var salt []byte
		for _, k := range keys {
			salt = append(salt, k...)
		}
		return hkdf.Key(sha256.New, shared, salt, "boxgate fleet "+purpose+" from "+sender+" to "+receiver, SecretSize)
	}
	if to, err = derive(a.host, other, a.Public(), public); err != nil {
		return nil, nil, err
	}
	from, err = derive(other, a.host, public, a.Public())
	return to, from, err
}
