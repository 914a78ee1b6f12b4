package rootfs

import (
	"bytes"
	"crypto/sha1"
	"encoding/asn1"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// attribute is one AttributeTypeAndValue of a distinguished name (RFC 5280, 4.1.2.4).
type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// relativeName is one RelativeDistinguishedName. The suffix SET makes encoding/asn1 encode it as a SET OF.
type relativeNameSET []attribute

// subjectHash returns the hash in OpenSSL's file names of a certificate directory (X509_NAME_hash): the first four bytes,
// least significant first, of SHA-1 over the subject in canonical form: every string in UTF-8, lower case, without outer
// white space and with single spaces inside, and without the outermost SEQUENCE header.
func subjectHash(rawSubject []byte) (uint32, error) {
	var name []relativeNameSET
	if rest, err := asn1.Unmarshal(rawSubject, &name); err != nil || len(rest) > 0 {
		return 0, fmt.Errorf("the certificate's subject cannot be read: %w", err)
	}
	var canonical []byte
	for _, rdn := range name {
		for i, a := range rdn {
			if text, ok := stringValue(a.Value); ok {
				rdn[i].Value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(canonicalText(text))}
			} else {
				rdn[i].Value = asn1.RawValue{FullBytes: a.Value.FullBytes}
			}
		}
		der, err := asn1.Marshal(rdn)
		if err != nil {
			return 0, err
		}
		canonical = append(canonical, der...)
	}
	sum := sha1.Sum(canonical) // OpenSSL's choice; it is only used as a file name, not for authentication
	return binary.LittleEndian.Uint32(sum[:4]), nil
}

// stringValue decodes the string types that OpenSSL canonicalizes.
func stringValue(v asn1.RawValue) (string, bool) {
	if v.Class != asn1.ClassUniversal {
		return "", false
	}
	switch v.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, 26: // 26: VisibleString
		return string(v.Bytes), true
	case asn1.TagT61String: // read as Latin-1
		runes := make([]rune, len(v.Bytes))
		for i, b := range v.Bytes {
			runes[i] = rune(b)
		}
		return string(runes), true
	case asn1.TagBMPString:
		units := make([]uint16, len(v.Bytes)/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(v.Bytes[2*i:])
		}
		return string(utf16.Decode(units)), true
	default:
		return "", false
	}
}

// canonicalText folds ASCII only, like OpenSSL: letters and white space beyond ASCII are kept.
func canonicalText(s string) string {
	words := bytes.FieldsFunc([]byte(s), func(r rune) bool {
		return strings.ContainsRune(" \t\n\v\f\r", r)
	})
	out := bytes.Join(words, []byte(" "))
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return string(out)
}
