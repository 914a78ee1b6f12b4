// Package token makes and checks the access tokens with which clients of E2B's dialect work in a box. A token is bound to one box
// and one API key. It is derived from both, and from a key of the installation, so no token is stored: it is valid while the API
// key is valid and may open sessions in the box.
package token

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"hash"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Owner is an API key that tokens belong to.
type Owner struct {
	ID   string            // stays the same when the key is replaced
	Hash [sha256.Size]byte // SHA-256 of the key, which does not
}

// OwnerOf returns the owner for a caller that has shown an API key.
func OwnerOf(c api.Caller, key string) Owner { return Owner{c.Key, sha256.Sum256([]byte(key))} }

// Keys finds API keys. All methods may be called concurrently.
type Keys interface {
	// Owners lists the API keys with an ID, or all of them for "": at most [MaxOwners]. Expired ones may be among them.
	Owners(id string) []Owner
	// Find returns the caller that the API key with this SHA-256 identifies, if it is valid now.
	Find(hash [sha256.Size]byte) (api.Caller, bool)
}

// MaxOwners is the number of API keys for which a signature is checked.
const MaxOwners = 4096

// Permissions decides who may work in a box; implemented by [boxgate/api/server.API].
type Permissions interface {
	// MayUse reports whether a caller may open sessions in a box that exists.
	MayUse(ctx context.Context, caller api.Caller, box policy.BoxID) bool
}

// SecretSize is the size of the installation's key for tokens, in bytes.
const SecretSize = 32

// Maker makes tokens. Safe for concurrent use.
type Maker struct{ secret [SecretSize]byte }

// NewMaker returns a maker with the key of an installation, which is [SecretSize] random bytes.
func NewMaker(secret []byte) (*Maker, error) {
	m := &Maker{}
	if len(secret) != SecretSize {
		return nil, errors.New("the key of access tokens is damaged")
	}
	copy(m.secret[:], secret)
	return m, nil
}

// purpose separates the tokens from other uses of the key. Its end cannot be part of an ID.
const purpose = "boxgate box token 1\x00"

// Token returns the token of an API key for a box. It is the same each time.
func (m *Maker) Token(box policy.BoxID, o Owner) name.Secret { return name.NewSecret(m.text(box, o)) }

// text returns the token: the ID of the API key, a point, and the code.
func (m *Maker) text(box policy.BoxID, o Owner) string {
	mac := hmac.New(sha256.New, m.secret[:])
	mac.Write([]byte(purpose))
	mac.Write([]byte(strconv.Itoa(len(o.ID)) + "\x00" + o.ID + "\x00" + string(box) + "\x00"))
	mac.Write(o.Hash[:])
	return o.ID + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// portPurpose is the purpose of the tokens of ports.
const portPurpose = "boxgate port token 1\x00"

// PortToken returns the token for the ports of a box that clients of the dialect share. It is the same for all API keys that may use the
// box, and each time; the box has it only for as long as its ports are shared with it.
func (m *Maker) PortToken(box policy.BoxID) name.Secret {
	mac := hmac.New(sha256.New, m.secret[:])
	mac.Write([]byte(portPurpose + string(box)))
	return name.NewSecret(base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
}

// codeSize is the length of the code in a token.
var codeSize = base64.RawURLEncoding.EncodedLen(sha256.Size)

// keyID returns the ID of the API key in a token.
func keyID(token string) (id string, ok bool) {
	at := len(token) - codeSize - 1
	if at <= 0 || at > maxID || token[at] != '.' {
		return "", false
	}
	return token[:at], true
}

// maxID bounds the ID of an API key or a box, in bytes.
const maxID = 128

// Access is the access to a box by a valid token or signature.
type Access struct {
	Caller api.Caller
	Box    policy.BoxID
	hash   [sha256.Size]byte // of the API key
}

// Checker checks tokens and signatures. Its zero value refuses every token. Safe for concurrent use.
type Checker struct {
	Maker *Maker
	Keys  Keys
	May   Permissions
}

// Check returns the access that a token gives to a box. It takes the same time for every wrong code.
func (c *Checker) Check(ctx context.Context, box policy.BoxID, token string) (Access, bool) {
	id, ok := keyID(token)
	if !ok || c.Maker == nil {
		return Access{}, false
	}
	return c.first(ctx, box, id, func(t string) bool { return equal(t, token) })
}

// Made reports whether a token was made for this ID of a box by an API key that is valid now. The box may have been deleted, or may never
// have existed, and only clients with a valid key may learn that. The answer takes as long as that of Check.
func (c *Checker) Made(box policy.BoxID, token string) bool {
	id, ok := keyID(token)
	if !ok || c.Maker == nil {
		return false
	}
	hash, ok := c.owner(box, id, func(t string) bool { return equal(t, token) })
	if ok {
		_, ok = c.Keys.Find(hash)
	}
	return ok
}

// Valid reports whether an access is still valid. Long work checks it at intervals.
func (c *Checker) Valid(ctx context.Context, a Access) bool {
	if c.Maker == nil {
		return false
	}
	caller, ok := c.Keys.Find(a.hash)
	return ok && caller == a.Caller && c.May.MayUse(ctx, caller, a.Box)
}

// first returns the access of the owner whose token matches, among the owners with an ID, or all of them for "".
func (c *Checker) first(ctx context.Context, box policy.BoxID, id string, matches func(token string) bool) (a Access, ok bool) {
	a.Box = box
	if a.hash, ok = c.owner(box, id, matches); !ok {
		return Access{}, false
	}
	if a.Caller, ok = c.Keys.Find(a.hash); !ok || !c.May.MayUse(ctx, a.Caller, box) {
		return Access{}, false
	}
	return a, true
}

// owner returns the SHA-256 of the API key whose token matches. It looks at all keys with the ID, whichever matches.
func (c *Checker) owner(box policy.BoxID, id string, matches func(token string) bool) (hash [sha256.Size]byte, ok bool) {
	owners := c.Keys.Owners(id)
	for _, o := range owners[:min(len(owners), MaxOwners)] {
		if matches(c.Maker.text(box, o)) {
			hash, ok = o.Hash, true
		}
	}
	return hash, ok
}

// The operations that a signature permits.
const (
	Read  = "read"
	Write = "write"
)

// Signed is a request for one file that carries a signature instead of a token.
type Signed struct {
	Path      string // as in the request
	Operation string // [Read] or [Write]
	User      string // as in the request; may be empty
	Signature string // v1_ and the base64 of a SHA-256, without padding
	Expires   string // seconds of Unix time as in the request; "" for never
}

// signaturePrefix is the version of the scheme.
const signaturePrefix = "v1_"

// The longest fields of a request with a signature, in bytes: a path, as the kernel accepts it, and a time. They bound the work for a
// stranger's request, which is repeated for each key.
const (
	maxPath    = 4095
	maxExpires = 20
)

// signatureSize is the length of a signature.
var signatureSize = len(signaturePrefix) + base64.RawStdEncoding.EncodedLen(sha256.Size)

// CheckSignature returns the access that a signature gives to the one file in a box. The client has signed with its token, so the
// signature is compared with those by the tokens of all API keys.
func (c *Checker) CheckSignature(ctx context.Context, box policy.BoxID, s Signed, now time.Time) (Access, bool) {
	if c.Maker == nil || !strings.HasPrefix(s.Signature, signaturePrefix) || (s.Operation != Read && s.Operation != Write) {
		return Access{}, false
	}
	if len(box) > maxID || len(s.Signature) != signatureSize || len(s.Path) > maxPath || len(s.User) > maxPath || len(s.Expires) > maxExpires {
		return Access{}, false
	}
	if s.Expires != "" {
		at, err := strconv.ParseInt(s.Expires, 10, 64)
		if err != nil || now.Unix() >= at {
			return Access{}, false
		}
	}
	sign := signer(s) // reads the path once, which may be long, instead of once for each key
	return c.first(ctx, box, "", func(t string) bool { return equal(sign(t), s.Signature) })
}

// Sign returns the signature of a request with a token, as clients make it.
func Sign(s Signed, token string) string { return signer(s)(token) }

// signer returns Sign for a request.
func signer(s Signed) func(token string) string {
	start := sha256.New()
	start.Write([]byte(s.Path + ":" + s.Operation + ":" + s.User + ":"))
	end := ""
	if s.Expires != "" {
		end = ":" + s.Expires
	}
	return func(token string) string {
		h, err := start.(hash.Cloner).Clone()
		if err != nil {
			return "" // equals no signature
		}
		_, _ = h.Write([]byte(token + end)) // never fails
		return signaturePrefix + base64.RawStdEncoding.EncodeToString(h.Sum(nil))
	}
}

// equal compares in constant time.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
