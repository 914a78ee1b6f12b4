package policy

import (
	"errors"
	"fmt"
	"strings"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// CheckHeaderName returns nil if a header of that name may be set: a token that belongs neither to the connection nor to the
// framing of the message.
func CheckHeaderName(n string) error {
	if flaw := match.HeaderFlaw(n); flaw != "" {
		return errors.New(name.Quote(name.Shown(n, name.IsToken)) + " " + flaw)
	}
	return nil
}

// CheckHeaderValue returns nil if v may be sent as the value of a header: visible ASCII with spaces and tabs inside, up
// to 8 KiB. The error shows no part of the value.
func CheckHeaderValue(v string) error {
	if flaw := headerValueFlaw(v); flaw != "" {
		return errors.New("the value " + flaw)
	}
	return nil
}

const maxHeaderValue = 8 << 10 // bytes

// headerValueFlaw completes the sentence "the value of …" without showing any of it; empty if there is none.
func headerValueFlaw(v string) string {
	if len(v) > maxHeaderValue {
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), maxHeaderValue)
	}
	if strings.HasSuffix(v, "\n") && headerValueFlaw(strings.TrimRight(v, "\r\n")) == "" {
		return "ends in a line break; remove it"
	}
	if flaw := headerBytesFlaw(v); flaw != "" {
		return flaw
	}
	if strings.Trim(v, " \t") != v {
		return "begins or ends with a space or tab, which HTTP strips; remove it"
	}
	return ""
}

func headerBytesFlaw(v string) string {
	for i := range len(v) {
		if c := v[i]; c != '\t' && (c < ' ' || c > '~') {
			return fmt.Sprintf("has a byte that is not visible ASCII, space or tab (at offset %d)", i)
		}
	}
	return ""
}

// affixFlaw completes a sentence about the prefix or suffix of a secret's value. Unlike a value, it may have a space on
// the side of the secret.
func affixFlaw(v string, suffix bool) string {
	outer := strings.TrimLeft(v, " \t")
	if suffix {
		outer = strings.TrimRight(v, " \t")
	}
	switch {
	case len(v) > maxHeaderValue/2:
		return fmt.Sprintf("is %d bytes; the limit is %d", len(v), maxHeaderValue/2)
	case headerBytesFlaw(v) != "":
		return headerBytesFlaw(v)
	case outer != v && suffix:
		return "ends with a space or tab, which HTTP strips; remove it"
	case outer != v:
		return "begins with a space or tab, which HTTP strips; remove it"
	}
	return ""
}

// IsSecretName reports whether s may name a secret of the operator: 1 to 64 letters, digits, '.', '_' and '-', the
// first a letter or digit.
func IsSecretName(s string) bool {
	if s == "" || len(s) > 64 || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !name.IsWordByte(c) && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// ShownSecretName returns what was given as the name of a secret as an error may show it: up to the first character
// that is not valid in one. What follows is often the value, as in YAML's {value:…}, where a space is missing.
func ShownSecretName(n string) string {
	return name.Shown(n, func(c byte) bool { return name.IsWordByte(c) || c == '.' || c == '-' })
}

// takenVariables have a meaning to every program of a box: a placeholder in their place could only break it.
var takenVariables = map[string]bool{
	"PATH": true, "HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "PWD": true, "LANG": true, "TERM": true,
	"IFS": true, "TMPDIR": true, "LD_PRELOAD": true, "LD_LIBRARY_PATH": true, "SSL_CERT_FILE": true,
	"CURL_CA_BUNDLE": true, "REQUESTS_CA_BUNDLE": true, "NODE_EXTRA_CA_CERTS": true, "NODE_OPTIONS": true,
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "ALL_PROXY": true, "NO_PROXY": true,
}

// variableFlaw completes the sentence that begins with the name of a variable; empty if there is none.
func variableFlaw(n string) string {
	if n == "" || len(n) > 128 || '0' <= n[0] && n[0] <= '9' {
		return "is not a variable name: 1 to 128 letters, digits and '_', not beginning with a digit"
	}
	for i := range len(n) {
		if !name.IsWordByte(n[i]) {
			return "is not a variable name: 1 to 128 letters, digits and '_', not beginning with a digit"
		}
	}
	if takenVariables[strings.ToUpper(n)] {
		return "has a meaning to programs; choose another variable"
	}
	return ""
}
