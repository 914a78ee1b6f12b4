package har

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"boxgate/proxy/scrub"
)

// Comments on bodies.
const (
	commentStream  = "streams are not recorded"
	commentCoding  = "not recorded: it cannot be searched for secrets in its content coding"
	commentPartial = "the rest is not recorded"
)

// maxDecoder is the largest memory of decoders of one body, in bytes. It is part of [Memory].
const maxDecoder = 16 << 20

// body returns a body with its secrets masked: as text, or in base64 if it is not UTF-8. It is decoded first, as secrets are not found
// otherwise. Of a body that is not complete, the end is left out as far as it could be the beginning of a secret.
func (r *rendering) body(c *content, fields []Field) (text, encoding, comment string) {
	switch {
	case c.blocked && r.capture.options.Bodies > 0:
		return "", "", commentStream
	case !c.kept:
		return "", "", ""
	}
	plain, whole, ok := decoded(c, strings.Join(values(fields, "Content-Encoding"), ","), r.capture.options.Bodies)
	if !ok {
		return "", "", commentCoding
	}
	whole = whole && (r.outcome.Error == "" || r.own && c == &r.download) // the end of the exchange may have cut it short
	s := scrub.NewStream(r.set)
	masked := s.Append(nil, plain)
	if whole {
		masked = s.End(masked)
	} else {
		comment = commentPartial
		masked = withoutPart(masked)
	}
	if utf8.Valid(masked) && !bytes.ContainsRune(masked, 0) {
		return string(masked), "", comment
	}
	return base64.StdEncoding.EncodeToString(masked), "base64", comment
}

// decoded returns the beginning of a body without its content codings, and whether that is the whole body. ok is false if it cannot be
// decoded.
func decoded(c *content, contentEncoding string, most int) (plain []byte, whole, ok bool) {
	codings, err := scrub.ParseCodings(contentEncoding)
	if err != nil || len(codings) > 0 && scrub.Memory(codings) > maxDecoder {
		return nil, false, false
	}
	if len(codings) == 0 || len(c.data) == 0 {
		return c.data, !c.cut, true
	}
	in, err := scrub.NewDecoder(codings, bytes.NewReader(c.data), scrub.Limit{Between: MaxBodies, Plain: int64(most), Times: 1100})
	if err != nil {
		return nil, false, false
	}
	var out bytes.Buffer
	n, err := io.CopyN(&out, in, int64(most)+1)
	switch {
	case errors.Is(err, io.EOF):
		return out.Bytes(), !c.cut, true
	case n > int64(most):
		return out.Bytes()[:most], false, true
	}
	return out.Bytes(), false, n > 0 // the data ends within the coding, or is malformed
}

// withoutPart removes the beginning of a character at the end of a text.
func withoutPart(text []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if c := text[len(text)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(text[len(text)-n:]) {
				return text[:len(text)-n]
			}
			break
		}
	}
	return text
}
