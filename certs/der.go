package certs

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Leaves are encoded here instead of by crypto/x509, which verifies each signature that it makes: that costs twice as
// much as the signature, and a connection to a new name waits for it. The signed part is the same, byte for byte;
// FuzzLeafIsThatOfTheLibrary compares the two.

var (
	oidECDSAWithSHA256 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	oidCommonName      = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidKeyUsage        = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidAltName         = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidConstraints     = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidAuthorityKey    = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidExtKeyUsage     = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidServerAuth      = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
)

// leafKey is a key of leaves, with its public half in the encoding of certificates.
type leafKey struct {
	*ecdsa.PrivateKey
	public []byte // SubjectPublicKeyInfo
}

// request describes a leaf.
type request struct {
	serial     *big.Int
	commonName string // may be empty
	dns        []string
	addresses  []netip.Addr
	from, to   time.Time
}

// check rejects values that the fields of a certificate cannot contain.
func (r *request) check() error {
	for _, name := range r.dns {
		if strings.ContainsFunc(name, func(c rune) bool { return c >= utf8.RuneSelf }) {
			return errors.New("a name that is not ASCII")
		}
	}
	if !utf8.ValidString(r.commonName) {
		return errors.New("a subject that is not UTF-8")
	}
	return nil
}

// sign returns the certificate for a request.
func (a *Authority) sign(r *request, public []byte) ([]byte, error) {
	body, err := a.body(r, public)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	signature, err := ecdsa.SignASN1(rand.Reader, a.key, sum[:])
	if err != nil {
		return nil, err
	}
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(body)
		addAlgorithm(b)
		b.AddASN1BitString(signature)
	})
	return b.Bytes()
}

// body returns the signed part (RFC 5280, section 4.1, TBSCertificate).
func (a *Authority) body(r *request, public []byte) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) { b.AddASN1Int64(2) }) // version 3
		b.AddASN1BigInt(r.serial)
		addAlgorithm(b)
		b.AddBytes(a.cert.RawSubject)
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			addTime(b, r.from)
			addTime(b, r.to)
		})
		addSubject(b, r.commonName)
		b.AddBytes(public)
		b.AddASN1(cbasn1.Tag(3).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { a.addExtensions(b, r) })
		})
	})
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return der, nil
}

func addAlgorithm(b *cryptobyte.Builder) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(oidECDSAWithSHA256) })
}

// addTime encodes a time according to RFC 5280, section 4.1.2.5.
func addTime(b *cryptobyte.Builder, t time.Time) {
	if t = t.UTC(); t.Year() >= 1950 && t.Year() < 2050 {
		b.AddASN1UTCTime(t)
	} else {
		b.AddASN1GeneralizedTime(t)
	}
}

func addSubject(b *cryptobyte.Builder, commonName string) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		if commonName == "" {
			return
		}
		b.AddASN1(cbasn1.SET, func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1ObjectIdentifier(oidCommonName)
				kind := cbasn1.PrintableString
				if !isPrintable(commonName) {
					kind = cbasn1.UTF8String
				}
				b.AddASN1(kind, func(b *cryptobyte.Builder) { b.AddBytes([]byte(commonName)) })
			})
		})
	})
}

// isPrintable reports whether s is a PrintableString.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		return !letter && !strings.ContainsRune(" '()+,-./:=?", c)
	})
}

func (a *Authority) addExtensions(b *cryptobyte.Builder, r *request) {
	addExtension(b, oidKeyUsage, true, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.BIT_STRING, func(b *cryptobyte.Builder) { b.AddBytes([]byte{7, 0x80}) }) // digitalSignature
	})
	addExtension(b, oidExtKeyUsage, false, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(oidServerAuth) })
	})
	addExtension(b, oidConstraints, true, func(b *cryptobyte.Builder) { // not an authority
		b.AddASN1(cbasn1.SEQUENCE, func(*cryptobyte.Builder) {})
	})
	if id := a.cert.SubjectKeyId; len(id) > 0 {
		addExtension(b, oidAuthorityKey, false, func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1(cbasn1.Tag(0).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(id) })
			})
		})
	}
	addExtension(b, oidAltName, r.commonName == "", func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, name := range r.dns {
				b.AddASN1(cbasn1.Tag(2).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
			}
			for _, addr := range r.addresses {
				b.AddASN1(cbasn1.Tag(7).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(addr.Unmap().AsSlice()) })
			}
		})
	})
}

func addExtension(b *cryptobyte.Builder, id asn1.ObjectIdentifier, critical bool, value cryptobyte.BuilderContinuation) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(id)
		if critical {
			b.AddASN1Boolean(true)
		}
		b.AddASN1(cbasn1.OCTET_STRING, value)
	})
}
