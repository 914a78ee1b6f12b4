package audit

import (
	"unicode/utf16"
	"unicode/utf8"

	"boxgate/policy"
	"boxgate/policy/name"
)

// isVerbatim reports whether neither [Event.escapeTexts] nor JSON encoding changes any text in the event, as is nearly
// always so.
func (e *Event) isVerbatim() bool {
	return isVerbatim(string(e.Box), maxText, '!') && isVerbatim(string(e.Stage), maxText, '!') &&
		isVerbatim(string(e.Protocol), maxText, '!') && isVerbatim(string(e.Action), maxText, '!') &&
		isVerbatim(string(e.Reason), maxText, '!') && isVerbatim(string(e.Phase), maxText, '!') &&
		isVerbatim(e.Conn, maxText, '!') && isVerbatim(e.Name, maxName, '!') && isVerbatim(e.Path, maxPath, '!') &&
		isVerbatim(string(e.Credential), maxText, '!') && isVerbatim(e.RCode, maxText, '!') && isVerbatim(e.Method, maxMethod, '!') &&
		isVerbatim(e.Rule, maxText, ' ') && isVerbatim(e.BoxName, maxText, '!') && isVerbatim(e.Login, maxText, '!') && isVerbatim(e.Via, maxText, '!') && isVerbatim(e.Secret, maxText, '!') &&
		isVerbatim(e.Error, maxText, ' ') && areVerbatim(e.Headers)
}

func areVerbatim(names []string) bool {
	if len(names) > maxHeaders {
		return false
	}
	for _, s := range names {
		if !isVerbatim(s, maxName, '!') {
			return false
		}
	}
	return true
}

// isVerbatim reports whether s has at most limit bytes, all of them from lowest to '~' and not escaped by JSON.
func isVerbatim(s string, limit int, lowest byte) bool {
	n := len(s)
	switch {
	case n > limit:
		return false
	case n == 0:
		return true
	case n < 8:
		return isWordVerbatim(upToSeven(s), lowest)
	}
	for at := 0; at < n-8; at += 8 {
		if !isWordVerbatim(eight(s[at:]), lowest) {
			return false
		}
	}
	return isWordVerbatim(eight(s[n-8:]), lowest)
}

// isWordVerbatim is isVerbatim for eight bytes.
func isWordVerbatim(w uint64, lowest byte) bool {
	// Some byte is zero after the XOR if subtracting 1 sets a highest bit that was not set.
	quote, backslash := w^ones*'"', w^ones*'\\'
	return arePlain(w, lowest) && ((quote-ones)&^quote|(backslash-ones)&^backslash)&highest == 0
}

// upToSeven returns eight bytes that consist of the one to seven bytes of s, with repetition.
func upToSeven(s string) uint64 {
	n := len(s)
	if n >= 4 {
		return uint64(four(s)) | uint64(four(s[n-4:]))<<32
	}
	three := uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	return three | three<<24 | uint64(s[0])*(1<<48|1<<56)
}

// four returns the first four bytes of s.
func four(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// jsonEscaped returns the event with all texts escaped for JSON strings.
func (e *Event) jsonEscaped() *Event {
	q := *e
	q.Box = policy.BoxID(jsonEscaped(string(e.Box)))
	q.Stage = policy.Stage(jsonEscaped(string(e.Stage)))
	q.Protocol = policy.Protocol(jsonEscaped(string(e.Protocol)))
	q.Action = Action(jsonEscaped(string(e.Action)))
	q.Reason = name.Reason(jsonEscaped(string(e.Reason)))
	q.Phase = Phase(jsonEscaped(string(e.Phase)))
	q.Conn, q.Name, q.Path = jsonEscaped(e.Conn), jsonEscaped(e.Name), jsonEscaped(e.Path)
	q.Credential, q.RCode = Credential(jsonEscaped(string(e.Credential))), jsonEscaped(e.RCode)
	q.Method, q.Rule, q.Error = jsonEscaped(e.Method), jsonEscaped(e.Rule), jsonEscaped(e.Error)
	q.BoxName = jsonEscaped(e.BoxName)
	q.Login, q.Secret, q.Via = jsonEscaped(e.Login), jsonEscaped(e.Secret), jsonEscaped(e.Via)
	q.Headers = make([]string, len(e.Headers))
	for i, name := range e.Headers {
		q.Headers[i] = jsonEscaped(name)
	}
	return &q
}

func jsonEscaped(s string) string {
	if isVerbatim(s, len(s), ' ') {
		return s
	}
	return string(appendEscaped(nil, s))
}

// appendEscaped appends text escaped for a JSON string, in printable ASCII. Texts of events are printable already
// ([Event.escapeTexts]); if one is not, it does not break a line either. A byte that is not UTF-8 becomes U+FFFD.
func appendEscaped(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r >= ' ' && r <= '~':
			b = append(b, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = appendUnit(appendUnit(b, high), low)
		default:
			b = appendUnit(b, r)
		}
		i += size
	}
	return b
}

// appendUnit appends a UTF-16 code unit as \uXXXX.
func appendUnit(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
