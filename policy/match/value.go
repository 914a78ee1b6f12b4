package match

import (
	"errors"
	"fmt"
	"strings"

	"boxgate/policy/name"
)

// CheckHeaderName returns nil if a header with this name may be set: it is a token, and belongs neither to the connection nor to the
// framing of the message.
func CheckHeaderName(n string) error {
	if flaw := HeaderFlaw(n); flaw != "" {
		return errors.New(name.Quote(name.Shown(n, name.IsToken)) + " " + flaw)
	}
	return nil
}

// CheckHeaderValue returns nil if v is valid as the value of a header: visible ASCII with spaces and tabs inside, up to 8 KiB.
// The error does not quote the value.
func CheckHeaderValue(v string) error {
	if flaw := HeaderValueFlaw(v); flaw != "" {
		return errors.New("the value " + flaw)
	}
	return nil
}

// MaxHeaderValue is the length of the longest value of a header, in bytes.
const MaxHeaderValue = 8 << 10

// HeaderValueFlaw completes the sentence "the value of …" without quoting the value; "" if it is valid.
func HeaderValueFlaw(v string) string {
	if len(v) > MaxHeaderValue {
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), MaxHeaderValue)
	}
	if strings.HasSuffix(v, "\n") && HeaderValueFlaw(strings.TrimRight(v, "\r\n")) == "" {
		return "ends in a line break; remove it"
	}
	if flaw := HeaderBytesFlaw(v); flaw != "" {
		return flaw
	}
	if strings.Trim(v, " \t") != v {
		return "begins or ends with a space or tab, which HTTP strips; remove it"
	}
	return ""
}

// HeaderBytesFlaw completes a sentence about a text with bytes that are invalid in header values; "" if it has none.
func HeaderBytesFlaw(v string) string {
	for i := range len(v) {
		if c := v[i]; c != '\t' && (c < ' ' || c > '~') {
			return fmt.Sprintf("has a byte that is not visible ASCII, space or tab (at offset %d)", i)
		}
	}
	return ""
}

// AffixFlaw completes a sentence about an invalid prefix or suffix of a secret. Unlike a value, it may have a space next to the
// secret.
func AffixFlaw(v string, suffix bool) string {
	outer := strings.TrimLeft(v, " \t")
	if suffix {
		outer = strings.TrimRight(v, " \t")
	}
	switch {
	case len(v) > MaxHeaderValue/2:
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), MaxHeaderValue/2)
	case HeaderBytesFlaw(v) != "":
		return HeaderBytesFlaw(v)
	case outer != v && suffix:
		return "ends with a space or tab, which HTTP strips; remove it"
	case outer != v:
		return "begins with a space or tab, which HTTP strips; remove it"
	}
	return ""
}
