package audit

import (
	"net/netip"
	"strconv"
	"time"
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
