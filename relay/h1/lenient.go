package h1

import (
	"bytes"
	"slices"
	"strings"
)

// This file parses responses that break RFC 9112 but have one meaning to a client that reads nothing behind them: [Response.Lenient] and
// the bodies of such responses. They are forwarded in the strict form. Their connection must not be reused, since another program could find
// the end of the response elsewhere.

// MaxLenientFields is the largest number of fields of a head or trailer section that is read leniently.
const MaxLenientFields = 1024

// Repairs is a set of mistakes in a response that was read leniently.
type Repairs uint8

// The repairs.
const (
	BareNewline      Repairs = 1 << iota // a line ends with LF only (RFC 9112, 2.2)
	Folded                               // a field continues on the next line (RFC 9112, 5.2)
	BlankBeforeColon                     // there is white space between a name and its colon (RFC 9112, 5.1)
	DroppedField                         // a name is not a token: the field is not forwarded (RFC 9110, 5.1)
	ChunkedTwice                         // Transfer-Encoding has chunked twice (RFC 9112, 6.1)
	LengthDropped                        // Transfer-Encoding overrides a Content-Length (RFC 9112, 6.3)
	OldChunked                           // a response of HTTP/1.0 is chunked (RFC 9112, 6.1)
	ManyFields                           // there are more than [MaxFields]
)

// repairTexts are in the order of the bits.
var repairTexts = []string{
	"bare LF", "folded field", "white space before a colon", "field without a valid name dropped", "chunked twice",
	"Content-Length beside Transfer-Encoding", "chunked in HTTP/1.0", "more than 128 fields",
}

// String lists the repairs, separated by commas.
func (r Repairs) String() string {
	var list []string
	for i, text := range repairTexts {
		if r&(1<<i) != 0 {
			list = append(list, text)
		}
	}
	return strings.Join(list, ", ")
}

// parseLenient is parse for a lenient response. It unfolds fields in b.
func (r *Response) parseLenient(b []byte, method string) error {
	status, rest := r.Repairs.cutLine(b)
	if err := r.statusLine(status); err != nil {
		return err
	}
	rest, err := r.Repairs.unfold(rest)
	if err != nil {
		return err
	}
	if r.Fields, err = r.Repairs.parseFields(rest, r.Fields); err != nil {
		return err
	}
	if err := r.frame(method); err != nil {
		return err
	}
	if r.Status == 101 && r.Repairs != 0 {
		return bad("a malformed head that switches protocols")
	}
	r.Close = true
	return nil
}

// repairFraming resolves combinations of fields that the strict parser refuses.
func (r *Response) repairFraming() {
	if !r.hasTE {
		return
	}
	if r.HasLength {
		r.Repairs |= LengthDropped
		r.HasLength, r.Body.Length = false, 0
		r.Fields = slices.DeleteFunc(r.Fields, func(f Field) bool { return f.Kind == ContentLength })
	}
	if r.Minor == 0 {
		r.Repairs |= OldChunked
		r.Minor = 1
	}
}

// cutLine splits lines after the first one, which it returns without its line break.
func (p *Repairs) cutLine(lines []byte) (line, rest []byte) {
	end := bytes.IndexByte(lines, '\n')
	if end < 0 {
		return lines, nil
	}
	line, rest = lines[:end], lines[end+1:]
	if end > 0 && line[end-1] == '\r' {
		return line[:end-1], rest
	}
	*p |= BareNewline
	return line, rest
}

// unfold replaces each line break before a continuation line, and the white space around it, by a space. It shortens lines in place.
func (p *Repairs) unfold(lines []byte) ([]byte, error) {
	if len(lines) > 0 && isBlank(lines[0]) {
		return nil, bad("white space before the first field")
	}
	out := lines[:0]
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		if end == len(lines) || end == 0 || !isBlank(lines[end]) {
			end = max(end, 1)
			out, lines = append(out, lines[:end]...), lines[end:]
			continue
		}
		line, rest := p.cutLine(lines)
		*p |= Folded
		out = append(bytes.TrimRight(append(out, line...), " \t"), ' ')
		lines = bytes.TrimLeft(rest, " \t")
	}
	return out, nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// parseFields parses unfolded lines up to the empty one, which ends them, and appends to fields.
func (p *Repairs) parseFields(lines []byte, fields []Field) ([]Field, error) {
	for n := 1; ; n++ {
		var line []byte
		if line, lines = p.cutLine(lines); len(line) == 0 {
			return fields, nil
		}
		if n > MaxLenientFields {
			return fields, bad(tooManyLenient)
		}
		if n > MaxFields {
			*p |= ManyFields
		}
		f, ok, err := p.parseField(line)
		if err != nil {
			return fields, err
		}
		if ok {
			fields = append(fields, f)
		}
	}
}

// tooManyLenient is [TooManyFields] for lenient responses.
const tooManyLenient = "it has more than 1,024 fields"

// parseField parses a line. ok is false if the field must be dropped, as its name cannot be forwarded.
func (p *Repairs) parseField(line []byte) (f Field, ok bool, err error) {
	name, v, found := bytes.Cut(line, []byte(":"))
	bare := bytes.TrimRight(name, " \t")
	if !found || len(bare) == 0 {
		return Field{}, false, bad("a field line without a name")
	}
	if len(bare) < len(name) {
		*p |= BlankBeforeColon
	}
	if !all(bare, value) {
		return Field{}, false, bad("a control byte in a field name")
	}
	if !all(bare, token) {
		*p |= DroppedField
		if !all(trim(v), value) {
			return Field{}, false, bad("a control byte in a field value")
		}
		return Field{}, false, nil
	}
	if len(bare) < len(name) { // parseField wants the colon behind the name
		line = append(append(slices.Clone(bare), ':'), v...)
	}
	f, err = parseField(line)
	return f, err == nil, err
}
