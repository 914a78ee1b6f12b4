package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"

	"boxgate/audit"
)

// Digest is the SHA-256 of a credential. The credentials are long and random, so a plain hash hides them.
type Digest [sha256.Size]byte

// BearerDigest is the digest of a bearer token.
func BearerDigest(token string) Digest { return sha256.Sum256([]byte("bearer\x00" + token)) }

// BasicDigest is the digest of a user name and password. The user name holds no colon (RFC 7617, 2).
func BasicDigest(user, password string) Digest {
	return sha256.Sum256([]byte("basic\x00" + user + ":" + password))
}

// Auth lists the credentials that a public URL accepts. The zero value lets no visitor in.
type Auth struct {
	Open   bool    // no credential is needed, provided that Bearer and Basic are nil
	Bearer *Digest // digest of a bearer token
	Basic  *Digest // digest of a user name and password
}

// open reports whether no credential is needed; the Authorization header then belongs to the application in the box.
func (a Auth) open() bool { return a.Open && a.Bearer == nil && a.Basic == nil }

// permits reports whether these values of Authorization contain a credential of the URL. There must be exactly one value,
// unless the URL is open. Credentials in the query do not count.
func (a Auth) permits(values []string) bool {
	return a.open() || len(values) == 1 && a.accepts(values[0])
}

// accepts reports whether a value of Authorization is a credential of the URL.
func (a Auth) accepts(value string) bool {
	if a.Bearer == nil && a.Basic == nil || len(value) > 4096 {
		return false
	}
	scheme, rest, _ := strings.Cut(value, " ")
	rest = strings.Trim(rest, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return a.Bearer.equal(BearerDigest(rest))
	case strings.EqualFold(scheme, "Basic"):
		plain, err := base64.StdEncoding.DecodeString(rest)
		user, password, found := strings.Cut(string(plain), ":")
		return err == nil && found && a.Basic.equal(BasicDigest(user, password))
	}
	return false
}

// kind returns the kind of the credential that permits has accepted.
func (a Auth) kind(values []string) audit.Credential {
	if a.open() {
		return audit.CredentialNone
	}
	if scheme, _, _ := strings.Cut(values[0], " "); strings.EqualFold(scheme, "Basic") {
		return audit.CredentialBasic
	}
	return audit.CredentialBearer
}

// equal compares in constant time. A nil digest is equal to no other.
func (d *Digest) equal(other Digest) bool {
	return d != nil && subtle.ConstantTimeCompare(d[:], other[:]) == 1
}

// same reports whether two URLs accept the same credentials.
func (a Auth) same(b Auth) bool {
	return a.Open == b.Open && sameDigest(a.Bearer, b.Bearer) && sameDigest(a.Basic, b.Basic)
}

func sameDigest(a, b *Digest) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// challenges returns the values of WWW-Authenticate (RFC 9110, 11.6.1).
func (a Auth) challenges() []string {
	var list []string
	if a.Bearer != nil || a.Basic == nil {
		list = append(list, `Bearer realm="boxgate"`)
	}
	if a.Basic != nil {
		list = append(list, `Basic realm="boxgate", charset="UTF-8"`)
	}
	return list
}
