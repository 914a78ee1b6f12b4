package postgres

import (
	"crypto/md5"
	"encoding/hex"
	"regexp"
	"strings"

	"boxgate/proxy/scrub"
)

// This file keeps the password out of what a server says of a login that failed.

// verifiers are what PostgreSQL keeps of passwords, which serve to guess them: those of SCRAM, and MD5 sums.
var verifiers = regexp.MustCompile(`(?i)SCRAM-SHA-256\$|md5[0-9a-f]{32}`)

// without returns a text of the server, unless it holds the password in some form: as it is, in hexadecimal or base64, with
// the escapes of SQL, JSON or URLs, or hashed as PostgreSQL does.
func (a *attempt) without(text string) string {
	switch {
	case len(a.password) < scrub.MinLength:
		return "(not shown: the password is so short that it could be any part of it)"
	case verifiers.MatchString(text), scrub.New(a.forms()).Mask([]byte(text)):
		return "(not shown: it holds the password)"
	}
	return text
}

// forms are the ways in which a password is written, other than those that are found by themselves. MD5 sums are those of a
// password with its user.
func (a *attempt) forms() []string {
	forms := []string{a.password}
	for _, quote := range []string{`'`, `"`, `\`} {
		forms = append(forms, strings.ReplaceAll(a.password, quote, quote+quote))
	}
	for _, salted := range []string{a.password, a.password + a.s.Login.User} {
		sum := md5.Sum([]byte(salted))
		forms = append(forms, hex.EncodeToString(sum[:]), string(sum[:]))
	}
	return forms
}

// state returns the SQLSTATE code that a server gave, if it is one.
func state(code string) string {
	if len(code) != 5 || strings.ContainsFunc(code, func(c rune) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'Z') }) {
		return codeUnreachable
	}
	return code
}
