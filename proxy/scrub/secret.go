package scrub

import (
	"encoding/base64"
	"slices"
	"strings"
)

// MinLength is the length in bytes of the shortest text that is searched for. Shorter ones occur in many responses by
// chance, and masking them would reveal more than it hides.
const MinLength = 8

// Texts returns the texts to mask for a header value: for "Bearer x" and the like only x, as that is what servers
// reflect; for "Basic x" also the password in it, and user and password together; for cookies and parameters such as
// token="x" also each value. Texts shorter than [MinLength] are left out, so the result may be empty.
func Texts(value string) []string {
	value = strings.Trim(value, " \t")
	scheme, credential, found := strings.Cut(value, " ")
	credential = strings.Trim(credential, " \t")
	all := []string{value}
	if found && isScheme(scheme) && len(credential) >= MinLength {
		all = []string{credential} // it is part of every form of the whole
		if strings.EqualFold(scheme, "basic") {
			all = append(all, basic(credential)...)
		}
	}
	all = append(all, parameters(all[0])...)
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < MinLength })
	slices.Sort(all)
	return slices.Compact(all)
}

// isScheme reports whether s could be the scheme of an Authorization header (RFC 9110, 11.1): a short token.
func isScheme(s string) bool {
	return s != "" && len(s) <= 32 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// basic returns the secrets in basic authentication credentials (RFC 7617). The user is not one, unless there is no
// real password: some services take a token as the user.
func basic(credential string) []string {
	decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(credential, "="))
	if err != nil {
		return nil
	}
	user, password, found := strings.Cut(string(decoded), ":")
	switch {
	case !found:
		return []string{user}
	case len(password) < MinLength || password == "x-oauth-basic":
		return []string{string(decoded), user}
	}
	return []string{string(decoded), password}
}

// parameters returns the values if the whole text is a list of name=value, separated by semicolons or commas.
func parameters(text string) (values []string) {
	for element := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == ',' }) {
		name, value, found := strings.Cut(strings.TrimSpace(element), "=")
		if !found || !isScheme(name) {
			return nil
		}
		values = append(values, strings.Trim(value, `"`))
	}
	return values
}
