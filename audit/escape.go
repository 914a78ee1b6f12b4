package audit

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"boxgate/policy"
)

// Longest texts that an event keeps, in bytes. A box chooses them, so they bound what one event may cost in memory.
const (
	maxName    = 256
	maxPath    = 1024
	maxText    = 512
	maxMethod  = 32
	maxHeaders = 64
)

// Escape makes text of a box safe for a terminal and a log line: everything but printable ASCII is written as \xNN
// (bytes) or \u{NNNN} (characters), and text longer than limit bytes is cut and ends in "...". Letters outside ASCII are
// escaped as well: right-to-left ones turn a line around, and others pass for Latin ones. Canonical names and paths have
// none. The backslash itself stays, so that escaping twice changes nothing.
func Escape(s string, limit int) string {
	cut := len(s) > limit
	if cut {
		s = s[:limit]
	}
	if !cut && isPlain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r >= ' ' && r <= '~':
			b.WriteByte(s[i])
		case r < ' ' || r == 0x7f || r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
		i += size
	}
	if cut {
		b.WriteString("...")
	}
	return b.String()
}

// isPlain reports whether s is printable ASCII alone, as nearly every name and path is.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// safe returns the event with every text in it escaped and cut. Texts that the gateway chose pass unchanged; they are
// escaped too, so that a part of the gateway that lets a box's text through by mistake does no harm.
func (e Event) safe() Event {
	e.Box = policy.BoxID(Escape(string(e.Box), maxText))
	e.Stage = policy.Stage(Escape(string(e.Stage), maxText))
	e.Protocol = policy.Protocol(Escape(string(e.Protocol), maxText))
	e.Action = Action(Escape(string(e.Action), maxText))
	e.Reason = policy.Reason(Escape(string(e.Reason), maxText))
	e.Name = Escape(e.Name, maxName)
	e.Path = Escape(e.Path, maxPath)
	e.Method = Escape(e.Method, maxMethod)
	e.Rule = Escape(e.Rule, maxText)
	e.Error = Escape(e.Error, maxText)
	e.Addr = e.Addr.WithZone("")
	e.Headers = safeHeaders(e.Headers)
	return e
}

// safeHeaders copies: the log keeps the event longer than its maker keeps the slice.
func safeHeaders(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	out := make([]string, min(len(names), maxHeaders))
	for i := range out {
		out[i] = Escape(names[i], maxName)
	}
	return out
}
