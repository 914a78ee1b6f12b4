package cause

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// Response is a response to a GET, parsed as leniently as the most lenient clients do.
type Response struct {
	Causes   []ID
	Proto    string // HTTP/1.1
	Status   int    // 0: no response
	Fields   []Field
	Content  []byte
	Complete bool // the content is complete, by its framing or because the connection ended
	Reusable bool // the connection could serve another request

	length          int64 // -1: not given
	chunked, ending bool  // ending: Connection: close, or HTTP/1.0 without keep-alive
}

// Field is a header field, with the value unfolded.
type Field struct{ Name, Value string }

// The gateway's limits for heads of responses.
const (
	maxFields = 128
	maxHead   = 64 << 10
)

// Parse parses the beginning of a connection's data after a GET. ended reports that no more data follows. The result is
// incomplete while more data is needed. Interim responses are skipped.
func Parse(raw []byte, ended bool) Response {
	for {
		r := Response{length: -1}
		if len(raw) == 0 && ended {
			r.note(NoResponse)
			return r
		}
		if n := min(len(raw), 5); string(raw[:n]) != "HTTP/"[:n] {
			r.note(NotHTTP)
			r.Complete = true
			return r
		}
		body, whole := r.head(raw)
		if !whole {
			if ended {
				r.note(CutHead)
			}
			return r
		}
		if r.Status >= 100 && r.Status < 200 && r.Status != 101 {
			raw = body
			continue
		}
		if r.Status == 101 {
			r.note(UnaskedUpgrade)
		}
		r.content(body, ended)
		return r
	}
}

func (r *Response) note(id ID) {
	if !slices.Contains(r.Causes, id) {
		r.Causes = append(r.Causes, id)
	}
}

// Get returns the first value of a field.
func (r *Response) Get(name string) string {
	for _, f := range r.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// head parses the head and returns the data after it. whole is false if the head is not complete.
func (r *Response) head(raw []byte) (rest []byte, whole bool) {
	var lines [][]byte
	rest = raw
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		if !found {
			return nil, false
		}
		rest = after
		stripped, crlf := bytes.CutSuffix(line, []byte("\r"))
		if !crlf {
			r.note(BareNewlines)
		}
		if len(stripped) == 0 {
			break
		}
		lines = append(lines, stripped)
	}
	if len(raw)-len(rest) > maxHead {
		r.note(LargeFields)
	}
	r.statusLine(string(lines[0]))
	for _, line := range lines[1:] {
		r.field(string(line))
	}
	if len(lines)-1 > maxFields {
		r.note(ManyFields)
	}
	r.framing()
	return rest, true
}

func (r *Response) statusLine(line string) {
	proto, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	r.Proto = proto
	r.Status, _ = strconv.Atoi(code)
	r.ending = proto == "HTTP/1.0"
}

func (r *Response) field(line string) {
	if line[0] == ' ' || line[0] == '\t' {
		r.note(FoldedField)
		if n := len(r.Fields); n > 0 {
			r.Fields[n-1].Value += " " + strings.Trim(line, " \t")
		}
		return
	}
	name, value, found := strings.Cut(line, ":")
	if trimmed := strings.TrimRight(name, " \t"); !found || trimmed != name || !isToken(name) {
		r.note(FieldName)
		if name = trimmed; !found {
			return
		}
	}
	value = strings.Trim(value, " \t")
	if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
		r.note(ControlByte)
	}
	r.Fields = append(r.Fields, Field{name, value})
}

// isToken reports whether a name is a token (RFC 9110, 5.6.2).
func isToken(name string) bool {
	for _, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

// framing derives the framing of the content, and notes unusual ones.
func (r *Response) framing() {
	var lengths, codings []string
	for _, f := range r.Fields {
		switch strings.ToLower(f.Name) {
		case "content-length":
			lengths = append(lengths, strings.Split(f.Value, ",")...)
		case "transfer-encoding":
			codings = append(codings, strings.Split(f.Value, ",")...)
		case "connection":
			list := strings.ToLower(f.Value)
			r.ending = !strings.Contains(list, "keep-alive") && (r.ending || strings.Contains(list, "close"))
		case "www-authenticate":
			scheme, _, _ := strings.Cut(strings.ToLower(f.Value), " ")
			if scheme == "ntlm" || scheme == "negotiate" {
				r.note(ConnectionLogin)
			}
		}
	}
	r.lengths(lengths)
	r.codings(codings)
	if r.chunked && len(lengths) > 0 {
		r.note(LengthAndChunked)
	}
	if len(codings) > 0 && r.Proto == "HTTP/1.0" {
		r.note(OldChunked)
	}
}

func (r *Response) lengths(values []string) {
	for _, v := range values {
		v = strings.TrimSpace(v)
		n, err := strconv.ParseUint(v, 10, 62)
		switch {
		case err != nil:
			r.note(LengthInvalid)
			continue
		case r.length >= 0 && r.length != int64(n):
			r.note(LengthConflict)
			continue
		case r.length >= 0:
			r.note(LengthRepeated)
		}
		r.length = int64(n)
	}
}

func (r *Response) codings(values []string) {
	for _, v := range values {
		switch v = strings.ToLower(strings.TrimSpace(v)); {
		case v == "chunked" && r.chunked:
			r.note(ChunkedTwice)
		case v == "chunked":
			r.chunked = true
		case v == "identity" || v == "":
			r.note(UnusualCoding)
		default:
			r.note(UnknownCoding)
		}
	}
}

// content takes the content out of the data after the head.
func (r *Response) content(body []byte, ended bool) {
	switch {
	case r.Status == 101 || r.Status == 204 || r.Status == 304:
		r.Complete = true
	case r.chunked:
		r.chunks(body)
	case r.length >= 0:
		r.Content = body[:min(int64(len(body)), r.length)]
		r.Complete = int64(len(r.Content)) == r.length
	default:
		r.Content, r.Complete, r.ending = body, ended, true
	}
	if ended && !r.Complete {
		r.note(CutBody)
	}
	r.Reusable = r.Complete && !r.ending
}

// chunks decodes a chunked content (RFC 9112, 7.1).
func (r *Response) chunks(body []byte) {
	for {
		line, rest, found := bytes.Cut(body, []byte("\n"))
		if !found {
			return
		}
		size, _, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\r")), []byte(";"))
		digits := bytes.TrimRight(size, " \t")
		n, err := strconv.ParseUint(string(digits), 16, 31)
		if err != nil {
			r.note(LengthInvalid)
			return
		}
		if len(digits) != len(size) {
			r.note(PaddedChunks)
		}
		if n == 0 {
			r.trailers(rest)
			return
		}
		r.Content = append(r.Content, rest[:min(uint64(len(rest)), n)]...)
		if uint64(len(rest)) < n+2 {
			return
		}
		body = rest[n+2:]
	}
}

// trailers reads the fields after the last chunk.
func (r *Response) trailers(rest []byte) {
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		if !found {
			return
		}
		if len(bytes.TrimSuffix(line, []byte("\r"))) == 0 {
			r.Complete = true
			return
		}
		r.note(Trailers)
		rest = after
	}
}

// Framing returns how the end of the content is found: none, chunked, length or close.
func (r *Response) Framing() string {
	switch {
	case r.Status == 0:
		return ""
	case r.Status == 101 || r.Status == 204 || r.Status == 304:
		return "none"
	case r.chunked:
		return "chunked"
	case r.length >= 0:
		return "length"
	}
	return "close"
}
