package audit

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"boxgate/policy"
	"boxgate/policy/name"
)

// The beginning of a log line, around the time of the event. The log of the gateway itself has the same form; zap
// writes it.
const (
	jsonHead     = `{"level":"info","time":"`
	jsonDecision = `","msg":"decision",`
)

// encoder formats events as lines. The zero value is ready to use.
type encoder struct {
	// The formatted second of the latest event, because the next event often falls into the same second.
	second int64
	where  *time.Location // nil: no event yet
	date   []byte
	zone   []byte
}

// append appends the event as a line: JSON with the field names of its JSON encoding, or console text as in [Line].
// verbatim is the result of [Event.isVerbatim]; false is always safe.
func (c *encoder) append(b []byte, e *Event, verbatim, console bool) []byte {
	if console {
		return append(append(b, Line(*e)...), '\n')
	}
	if !verbatim {
		e = e.jsonEscaped()
	}
	b = append(c.appendTime(append(b, jsonHead...), e.Time), jsonDecision...)
	return append(appendFields(b, e), '\n')
}

// appendTime appends the time in the format of [time.RFC3339Nano].
func (c *encoder) appendTime(b []byte, t time.Time) []byte {
	if s, where := t.Unix(), t.Location(); s != c.second || where != c.where {
		c.second, c.where = s, where
		c.date, c.zone = t.AppendFormat(c.date[:0], "2006-01-02T15:04:05"), t.AppendFormat(c.zone[:0], "Z07:00")
	}
	b = append(b, c.date...)
	if nanos := t.Nanosecond(); nanos != 0 {
		b = strconv.AppendInt(b, int64(1e9+nanos), 10)
		b[len(b)-len("1000000000")] = '.'
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return append(b, c.zone...)
}

// appendFields appends all fields but the time, and the closing brace. Empty fields are omitted. Texts are not escaped.
func appendFields(b []byte, e *Event) []byte {
	b = appendNumber(b, `"seq":`, e.Seq)
	b = appendWord(b, `"box":"`, string(e.Box))
	b = appendWord(b, `"box_name":"`, e.BoxName)
	b = appendText(b, `"stage":"`, string(e.Stage))
	b = appendWord(b, `"protocol":"`, string(e.Protocol))
	b = appendWord(b, `"name":"`, e.Name)
	b = appendAddr(b, `"addr":"`, e.Addr)
	b = appendAddr(b, `"claimed_addr":"`, e.Claimed)
	b = appendNumber(b, `"port":`, uint64(e.Port))
	b = appendAddr(b, `"peer":"`, e.Peer)
	b = appendWord(b, `"method":"`, e.Method)
	b = appendWord(b, `"path":"`, e.Path)
	b = appendWord(b, `"messages":"`, e.Messages)
	b = appendWord(b, `"credential":"`, string(e.Credential))
	b = appendText(b, `"verdict":"`, e.Verdict.String())
	b = appendWord(b, `"action":"`, string(e.Action))
	b = appendWord(b, `"rcode":"`, e.RCode)
	b = appendText(b, `"reason":"`, string(e.Reason))
	b = appendWord(b, `"rule":"`, e.Rule)
	b = appendWord(b, `"login":"`, e.Login)
	b = appendWord(b, `"via":"`, e.Via)
	b = appendWord(b, `"secret":"`, e.Secret)
	b = appendCounts(b, e)
	b = appendWord(b, `"phase":"`, string(e.Phase))
	b = appendWord(b, `"conn":"`, e.Conn)
	b = appendWord(b, `"error":"`, e.Error)
	if e.SelfTest {
		b = append(b, `"selftest":true,`...)
	}
	b = appendNames(b, `"headers":[`, e.Headers)
	b = appendNames(b, `"secrets":[`, e.Secrets)
	b[len(b)-1] = '}' // replaces the comma after the last field
	return b
}

func appendCounts(b []byte, e *Event) []byte {
	b = appendNumber(b, `"policy_version":`, e.Version)
	b = appendNumber(b, `"count":`, e.Count)
	b = appendNumber(b, `"destinations":`, e.Destinations)
	b = appendSigned(b, `"bytes_in":`, e.BytesIn)
	b = appendSigned(b, `"bytes_out":`, e.BytesOut)
	b = appendSigned(b, `"duration_ns":`, int64(e.Duration))
	return appendSigned(b, `"status":`, int64(e.Status))
}

// appendText appends a field. name includes the punctuation up to the value.
func appendText(b []byte, name, value string) []byte {
	return append(append(append(b, name...), value...), `",`...)
}

// appendWord is appendText for a field that is omitted if empty.
func appendWord(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return append(append(append(b, name...), value...), `",`...)
}

func appendAddr(b []byte, name string, a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return b
	case a.Is4():
		b = appendIPv4(append(b, name...), a.As4())
	case a.Zone() == "":
		b = a.AppendTo(append(b, name...))
	default:
		b = appendEscaped(append(a.WithZone("").AppendTo(append(b, name...)), '%'), a.Zone())
	}
	return append(b, `",`...)
}

func appendNumber(b []byte, name string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return append(appendDecimal(append(b, name...), n), ',')
}

func appendSigned(b []byte, name string, n int64) []byte {
	if n < 0 {
		return append(strconv.AppendInt(append(b, name...), n, 10), ',')
	}
	return appendNumber(b, name, uint64(n))
}

// appendNames appends a field with a list of texts, omitted if empty.
func appendNames(b []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, name...)
	for _, s := range list {
		b = append(append(append(b, '"'), s...), `",`...)
	}
	b[len(b)-1] = ']'
	return append(b, ',')
}

// pairs are the numbers from 00 to 99.
const pairs = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849" +
	"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"

// powers are the powers of ten.
var powers = func() (p [20]uint64) {
	p[0] = 1
	for i := range len(p) - 1 {
		p[i+1] = 10 * p[i]
	}
	return p
}()

// octet is a decimal octet of an IPv4 address, followed by a dot.
type octet struct {
	text [4]byte
	size int
}

var octets = func() (all [256]octet) {
	for i := range all {
		all[i].size = copy(all[i].text[:], strconv.Itoa(i)+".")
	}
	return all
}()

// appendDecimal is [strconv.AppendUint] in half the time: most fields of a line are numbers.
func appendDecimal(b []byte, n uint64) []byte {
	size := bits.Len64(n) * 1233 >> 12 // the number of digits, or one too few: 1233/4096 is a little more than log10(2)
	if n == 0 || n >= powers[size] {
		size++
	}
	b = slices.Grow(b, size)[:len(b)+size]
	digits := b[len(b)-size:]
	for len(digits) >= 2 {
		end := len(digits) - 2
		pair := n % 100 * 2
		n /= 100
		digits[end], digits[end+1] = pairs[pair], pairs[pair+1]
		digits = digits[:end]
	}
	if len(digits) > 0 {
		digits[0] = byte('0' + n)
	}
	return b
}

func appendIPv4(b []byte, ip [4]byte) []byte {
	for _, n := range ip {
		o := &octets[n]
		b = append(b, o.text[:]...)
		b = b[:len(b)-len(o.text)+o.size]
	}
	return b[:len(b)-1]
}

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
	e.Messages = Escape(e.Messages, maxText)
	e.Rule = Escape(e.Rule, maxText)
	e.BoxName = escapeWord(e.BoxName, maxText)
	e.Login = escapeWord(e.Login, maxText)
	e.Via = escapeWord(e.Via, maxText)
	e.Secret = escapeWord(e.Secret, maxText)
	e.Error = Escape(e.Error, maxText)
	e.Headers, e.Secrets = safeNames(e.Headers), safeNames(e.Secrets)
	return false
}

// unzoned returns the address without its zone, which is free text.
func unzoned(a netip.Addr) netip.Addr {
	if a.Is6() {
		return a.WithZone("")
	}
	return a
}

// safeNames returns names itself if it is safe, as it nearly always is, else an escaped copy: the slice belongs to
// the caller.
func safeNames(names []string) []string {
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

// isVerbatim reports whether neither [Event.escapeTexts] nor JSON encoding changes any text in the event, as is nearly
// always so.
func (e *Event) isVerbatim() bool {
	return isVerbatim(string(e.Box), maxText, '!') && isVerbatim(string(e.Stage), maxText, '!') &&
		isVerbatim(string(e.Protocol), maxText, '!') && isVerbatim(string(e.Action), maxText, '!') &&
		isVerbatim(string(e.Reason), maxText, '!') && isVerbatim(string(e.Phase), maxText, '!') &&
		isVerbatim(e.Conn, maxText, '!') && isVerbatim(e.Name, maxName, '!') && isVerbatim(e.Path, maxPath, '!') &&
		isVerbatim(string(e.Credential), maxText, '!') && isVerbatim(e.RCode, maxText, '!') && isVerbatim(e.Method, maxMethod, '!') &&
		isVerbatim(e.Messages, maxText, ' ') && isVerbatim(e.Rule, maxText, ' ') && isVerbatim(e.BoxName, maxText, '!') && isVerbatim(e.Login, maxText, '!') && isVerbatim(e.Via, maxText, '!') && isVerbatim(e.Secret, maxText, '!') &&
		isVerbatim(e.Error, maxText, ' ') && areVerbatim(e.Headers) && areVerbatim(e.Secrets)
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
	q.BoxName, q.Messages = jsonEscaped(e.BoxName), jsonEscaped(e.Messages)
	q.Login, q.Secret, q.Via = jsonEscaped(e.Login), jsonEscaped(e.Secret), jsonEscaped(e.Via)
	q.Headers, q.Secrets = jsonEscapedAll(e.Headers), jsonEscapedAll(e.Secrets)
	return &q
}

func jsonEscapedAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = jsonEscaped(s)
	}
	return out
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
