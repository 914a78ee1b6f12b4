package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// maxValue is the maximum length of a header value, maxDocument that of a document, in bytes.
const (
	maxValue    = 8 << 10
	maxDocument = 64 << 10
)

// form is the form of a value: valid in a header, or a document.
type form struct{ document bool }

var (
	errEmpty = errors.New("it is empty")
	errText  = errors.New("it is not text in UTF-8")
)

// max is the maximum length in bytes.
func (f form) max() int {
	if f.document {
		return maxDocument
	}
	return maxValue
}

// maxRaw is max plus a trailing line break.
func (f form) maxRaw() int { return f.max() + len("\r\n") }

func (f form) errTooLong() error { return fmt.Errorf("it is longer than %d bytes", f.max()) }

// valueOf makes a secret from the content of a file or the output of a command, without one trailing line break. It
// clears raw.
func (f form) valueOf(raw []byte) (name.Secret, error) {
	defer clear(raw)
	if len(raw) > f.maxRaw() {
		return name.Secret{}, f.errTooLong()
	}
	text, cut := bytes.CutSuffix(raw, []byte("\n"))
	if cut {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return f.checked(string(text))
}

// checked makes a secret of a value if it has the form.
func (f form) checked(v string) (name.Secret, error) {
	if v == "" {
		return name.Secret{}, errEmpty
	}
	if err := f.check(v); err != nil {
		return name.Secret{}, err
	}
	return name.NewSecret(v), nil
}

func (f form) check(v string) error {
	switch {
	case !f.document:
		return match.CheckHeaderValue(v)
	case len(v) > maxDocument:
		return f.errTooLong()
	case !utf8.ValidString(v) || strings.Contains(v, "\x00"):
		return errText
	}
	return nil
}
