package audit

import (
	"fmt"
	"net/netip"
	"unicode/utf8"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Maximum lengths of an event's texts in bytes, and of its list of headers. A box chooses the texts, so these limits
// bound the memory of an event.
const (
	maxName    = 256
	maxPath    = 1024
	maxText    = 512
	maxMethod  = 32
	maxHeaders = 64
)

// Escape makes text from a box safe for a terminal and a log line: everything but printable ASCII becomes \xNN (bytes)
// or \u{NNNN} (characters), and text longer than limit bytes is truncated and ends in "...". Letters outside ASCII are
// escaped too: right-to-left ones reverse a line, and others look like Latin ones. Canonical names and paths do not
// contain them. The backslash itself is not escaped, so escaping is idempotent.
func Escape(s string, limit int) string { return escape(s, limit, ' ') }

// escapeWord is Escape for text without spaces, because a space could fake a column of [Line].
func escapeWord(s string, limit int) string { return escape(s, limit, '!') }

const cutMark = "..."

// escape keeps the bytes from lowest to '~' and escapes all others.
func escape(s string, limit int, lowest byte) string {
	if len(s) <= limit && isPlain(s, lowest) {
		return s
	}
	var out []byte
	fits := 0 // longest prefix of out that leaves space for the "..."
	for i := 0; i < len(s) && len(out) <= limit; {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r >= rune(lowest) && r <= '~':
			out = append(out, s[i])
		case r < 0x80 || r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, s[i])
		default:
			out = fmt.Appendf(out, `\u{%x}`, r)
		}
		if len(out)+len(cutMark) <= limit {
			fits = len(out)
		}
		i += size
	}
	if len(out) > limit {
		return string(out[:fits]) + cutMark[:min(len(cutMark), limit)]
	}
	return string(out)
}

// isPlain reports whether s consists of bytes from lowest to '~', like nearly every name and path.
func isPlain(s string, lowest byte) bool {
	for ; len(s) >= 8; s = s[8:] {
		if !arePlain(eight(s), lowest) {
			return false
		}
	}
	for i := range len(s) {
		if s[i] < lowest || s[i] > '~' {
			return false
		}
	}
	return true
}

// eight returns the first eight bytes of s.
func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

const ones, highest = 0x0101010101010101, 0x8080808080808080

// arePlain is isPlain for eight bytes. A byte is not plain if its highest bit is set in itself, after adding 1, or
// after subtracting lowest. A byte that carries into the next one, or borrows from it, is not plain itself.
func arePlain(w uint64, lowest byte) bool {
	return (w|(w+ones)|(w-ones*uint64(lowest)))&highest == 0
}

// escapeTexts escapes and truncates every text in the event, and reports whether the log can contain them all
// unchanged, see [Event.isVerbatim]. Texts that the gateway chose do not change, but are escaped too, in case a part of
// the gateway passes on a box's text by mistake.
func (e *Event) escapeTexts() (verbatim bool) {
	e.Addr, e.Claimed, e.Peer = unzoned(e.Addr), unzoned(e.Claimed), unzoned(e.Peer)
	if e.isVerbatim() {
		return true
	}
	e.Box = policy.BoxID(escapeWord(string(e.Box), maxText))
	e.Stage = policy.Stage(escapeWord(string(e.Stage), maxText))
	e.Protocol = policy.Protocol(escapeWord(string(e.Protocol), maxText))
	e.Action = Action(escapeWord(string(e.Action), maxText))
	e.RCode = escapeWord(e.RCode, maxText)
	e.Reason = name.Reason(escapeWord(string(e.Reason), maxText))
	e.Phase = Phase(escapeWord(string(e.Phase), maxText))
	e.Conn = escapeWord(e.Conn, maxText)
	e.Name = escapeWord(e.Name, maxName)
	e.Path = escapeWord(e.Path, maxPath)
	e.Credential = Credential(escapeWord(string(e.Credential), maxText))
	e.Method = escapeWord(e.Method, maxMethod)
	e.Rule = Escape(e.Rule, maxText)
	e.BoxName = escapeWord(e.BoxName, maxText)
	e.Login = escapeWord(e.Login, maxText)
	e.Via = escapeWord(e.Via, maxText)
	e.Secret = escapeWord(e.Secret, maxText)
	e.Error = Escape(e.Error, maxText)
	e.Headers = safeHeaders(e.Headers)
	return false
}

// unzoned returns the address without its zone, which is free text.
func unzoned(a netip.Addr) netip.Addr {
	if a.Is6() {
		return a.WithZone("")
	}
	return a
}

// safeHeaders returns names itself if it is safe, as it nearly always is, else an escaped copy: the slice belongs to
// the caller.
func safeHeaders(names []string) []string {
	safe := len(names) <= maxHeaders
	for i := 0; safe && i < len(names); i++ {
		safe = len(names[i]) <= maxName && isPlain(names[i], '!')
	}
	if safe {
		return names
	}
	out := make([]string, min(len(names), maxHeaders))
	for i := range out {
		out[i] = escapeWord(names[i], maxName)
	}
	return out
}
