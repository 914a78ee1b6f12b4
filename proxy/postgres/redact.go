package postgres

import (
	"crypto/md5"
	"encoding/hex"
	"regexp"
	"strings"

	"boxgate/proxy/scrub"
)

// This file removes the password from the server's messages about a failed login.

// verifiers matches the stored forms of passwords in PostgreSQL, which allow offline guessing: SCRAM verifiers and MD5
// sums.
var verifiers = regexp.MustCompile(`(?i)SCRAM-SHA-256\$|md5[0-9a-f]{32}`)

// withoutPassword returns a text of the server, or a placeholder if it contains the password in some form: plain, in hexadecimal or
// base64, escaped for SQL, JSON or URLs, or hashed as PostgreSQL does.
func (a *attempt) withoutPassword(text string) string {
	switch {
	case len(a.password) < scrub.MinLength:
		return "(not shown: the password is too short to be recognized in it)"
	case verifiers.MatchString(text), scrub.New(a.passwordForms()).Mask([]byte(text)):
		return "(not shown: it contains the password)"
	}
	return text
}

// passwordForms returns the forms of the password that package scrub does not derive itself. PostgreSQL's MD5 sums are of the
// password followed by the user name.
func (a *attempt) passwordForms() []string {
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

// sqlState returns the server's SQLSTATE code if it is well-formed, or a generic one.
func sqlState(code string) string {
	if len(code) != 5 || strings.ContainsFunc(code, func(c rune) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'Z') }) {
		return codeUnreachable
	}
	return code
}
