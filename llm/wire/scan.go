package wire

import (
	"bytes"
	"unicode/utf8"
)

// Bounds of the scanner.
const (
	maxDepth  = 512 // levels of JSON that are followed
	maxPath   = 5   // levels of which the place is known
	maxKey    = 64  // bytes of a key that is known
	maxKept   = 256 // bytes of a string or number that is known
	otherKey  = "?" // in the place of keys that are empty, too long, or could be taken for several
	listLevel = "[]"
)

// visitor receives the values of a document in its order.
type visitor interface {
	// value is called at the end of a scalar and at the beginning of an object or a list. place consists of the keys of the enclosing
	// objects with "/" between them, and "[]" for lists; a list that is the whole document is left out. kind is the first byte of the value
	// ('0' for numbers). text is a string, decoded, or a number; cut reports that it is longer than maxKept. Neither slice may be kept.
	value(place []byte, kind byte, text []byte, cut bool)
	// key is called for each key of an object whose place is known, with the key as last part of place.
	key(place []byte)
}

// refers is a visitor of members at any level.
type refers interface {
	// refersBy reports whether the value of a key is needed, however deep it is.
	refersBy(key []byte) bool
	// refersTo is called for these values, as [visitor.value] is.
	refersTo(kind byte, text []byte)
}

// scanner reads one JSON document as it arrives (RFC 8259). It follows strings, escapes and levels exactly, and accepts some documents that are
// not valid. The zero scanner is ready after to is set. Not safe for concurrent use.
type scanner struct {
	to    visitor
	state state
	esc   int8 // of an escape in a string: -1 after the backslash, n digits of \u that are missing
	isKey bool // the string is a key
	cut   bool // text is incomplete
	mute  bool // text is not needed
	unit  rune // of \u so far

	depth   int // open objects and lists
	objects [maxDepth / 64]uint64
	known   int // levels whose place is in path
	ends    [maxPath + 1]int
	path    []byte // of the known levels
	text    []byte // of the current key or scalar

	refers refers // nil: not asked
	watch  bool   // the next value is of a key of refers

	counts bool   // strings at this place are the text of an answer
	Text   uint64 // bytes of the text of answers, as written
}

// state is the part of the document that the scanner expects next.
type state uint8

const (
	inStart    state = iota // the document
	inValue                 // a value
	inFirst                 // a value or the end of a list
	inKeys                  // a key or the end of an object
	inKey                   // a key
	inColon                 // the colon after a key
	inAfter                 // a comma, or the end of the object or list
	inString                // the rest of a string
	inNumber                // the rest of a number
	inLiteral               // the rest of true, false or null
	inDone                  // white space after the document
	inBroken                // the data is not JSON, or nested too deeply
	wholeState = inDone
)

// reset begins another document.
func (s *scanner) reset() {
	*s = scanner{to: s.to, path: s.path[:0], text: s.text[:0], Text: s.Text}
}

// whole reports whether the document is complete.
func (s *scanner) whole() bool { return s.state == wholeState }

// feed takes the next piece of the document.
func (s *scanner) feed(p []byte) {
	for len(p) > 0 && s.state != inBroken {
		switch s.state {
		case inString:
			p = s.inString(p)
		case inNumber, inLiteral:
			p = s.inWord(p)
		default:
			s.token(p[0])
			p = p[1:]
		}
	}
}

// token takes a byte between values.
func (s *scanner) token(c byte) {
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return
	}
	switch s.state {
	case inStart:
		if c != '{' && c != '[' {
			s.state = inBroken
			return
		}
		s.begin(c)
	case inFirst, inValue:
		if s.state == inFirst && c == ']' {
			s.close(c)
			return
		}
		s.begin(c)
	case inKeys, inKey:
		switch {
		case c == '"':
			s.beginString(true)
		case c == '}' && s.state == inKeys:
			s.close(c)
		default:
			s.state = inBroken
		}
	case inColon:
		if s.state = inValue; c != ':' {
			s.state = inBroken
		}
	case inAfter:
		s.after(c)
	default:
		s.state = inBroken
	}
}

// after takes the byte after a value.
func (s *scanner) after(c byte) {
	switch {
	case c == ',' && s.inObject():
		s.state = inKey
	case c == ',':
		s.state = inValue
	case c == '}' || c == ']':
		s.close(c)
	default:
		s.state = inBroken
	}
}

// begin takes the first byte of a value.
func (s *scanner) begin(c byte) {
	switch {
	case c == '{' || c == '[':
		s.open(c)
	case c == '"':
		s.beginString(false)
	case c == '-' || c >= '0' && c <= '9':
		s.state, s.text, s.cut = inNumber, append(s.text[:0], c), false
	case c == 't' || c == 'f' || c == 'n':
		s.state, s.text, s.cut = inLiteral, append(s.text[:0], c), false
	default:
		s.state = inBroken
	}
}

// inObject reports whether the innermost level is an object.
func (s *scanner) inObject() bool {
	d := s.depth - 1
	return d >= 0 && s.objects[d/64]>>(d%64)&1 == 1
}

// placed reports whether the place of the next value is known: that of each level around it is.
func (s *scanner) placed() bool { return s.known == s.depth }

// open begins an object or a list.
func (s *scanner) open(c byte) {
	if s.depth == maxDepth {
		s.state = inBroken
		return
	}
	if s.placed() && s.depth > 0 {
		s.to.value(s.path, c, nil, false)
	}
	if s.watch {
		s.watch = false
		s.refers.refersTo(c, nil)
	}
	placed := s.placed() && s.depth < maxPath
	d := s.depth
	s.depth++
	if c == '{' {
		s.objects[d/64] |= 1 << (d % 64)
		s.state = inKeys
	} else {
		s.objects[d/64] &^= 1 << (d % 64)
		s.state = inFirst
	}
	if !placed {
		return
	}
	s.known = s.depth
	s.ends[d] = len(s.path)
	if c == '[' && d > 0 {
		s.join(listLevel)
	}
}

// join appends a key to the path of the innermost level, replacing its previous key.
func (s *scanner) join(key string) {
	s.path = s.path[:s.ends[s.depth-1]]
	if len(s.path) > 0 {
		s.path = append(s.path, '/')
	}
	s.path = append(s.path, key...)
}

// close ends an object or a list.
func (s *scanner) close(c byte) {
	if s.inObject() != (c == '}') {
		s.state = inBroken
		return
	}
	if s.placed() {
		s.known--
		s.path = s.path[:s.ends[s.known]]
	}
	s.depth--
	s.ended()
}

// ended follows a value.
func (s *scanner) ended() {
	if s.state = inAfter; s.depth == 0 {
		s.state = inDone
	}
}

// beginString begins a key or a string.
func (s *scanner) beginString(key bool) {
	s.state, s.isKey, s.text, s.cut, s.esc = inString, key, s.text[:0], false, 0
	s.mute = !s.placed() && !s.watch && !(key && s.refers != nil)
}

// inString takes the next bytes of a string, and returns those after it.
func (s *scanner) inString(p []byte) []byte {
	if s.esc != 0 {
		s.escape(p[0])
		return p[1:]
	}
	n := bytes.IndexByte(p, '"')
	run := p
	if n >= 0 {
		run = p[:n]
	}
	if at := bytes.IndexByte(run, '\\'); at >= 0 {
		s.add(run[:at])
		s.esc = -1
		return p[at+1:]
	}
	s.add(run)
	if n < 0 {
		return nil
	}
	if s.isKey {
		s.endKey()
	} else {
		s.endScalar('"')
	}
	return p[n+1:]
}

// add appends bytes of a string to its text.
func (s *scanner) add(b []byte) {
	if s.counts && !s.isKey {
		s.Text += uint64(len(b))
	}
	if s.mute || len(b) == 0 {
		return
	}
	if room := maxKept - len(s.text); len(b) > room {
		b, s.cut = b[:room], true
	}
	s.text = append(s.text, b...)
}

// escape takes a byte after a backslash.
func (s *scanner) escape(c byte) {
	if s.esc == -1 {
		if c == 'u' {
			s.esc, s.unit = 4, 0
			return
		}
		s.esc = 0
		if plain := bytes.IndexByte([]byte(`"\/bfnrt`), c); plain >= 0 {
			c = "\"\\/\b\f\n\r\t"[plain]
		}
		s.add([]byte{c})
		return
	}
	digit := rune(bytes.IndexByte([]byte("0123456789abcdef"), c|0x20))
	if digit < 0 || c < '0' {
		s.state = inBroken
		return
	}
	s.unit = s.unit<<4 | digit
	if s.esc--; s.esc > 0 {
		return
	}
	if s.unit < utf8.RuneSelf {
		s.add([]byte{byte(s.unit)})
		return
	}
	s.add(utf8.AppendRune(nil, s.unit)) // half of a surrogate pair becomes U+FFFD
}

// endKey follows a key.
func (s *scanner) endKey() {
	s.state = inColon
	s.watch = s.refers != nil && !s.cut && s.refers.refersBy(s.text)
	if !s.placed() {
		return
	}
	key := otherKey
	if !s.cut && len(s.text) > 0 && len(s.text) <= maxKey && bytes.IndexByte(s.text, '/') < 0 && bytes.IndexByte(s.text, '[') < 0 {
		key = string(s.text)
	}
	s.join(key)
	if s.depth == 1 || s.depth == 2 && s.ends[1] == 0 { // 2: a list is the whole document
		s.counts = isText(key)
	}
	s.to.key(s.path)
}

// isText reports whether a member of a response or of an event has the text of the answer.
func isText(key string) bool {
	switch key {
	case "delta", "choices", "candidates", "content", "output":
		return true
	}
	return false
}

// inWord takes the next bytes of a number or literal.
func (s *scanner) inWord(p []byte) []byte {
	for i, c := range p {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c == '-', c == '+', c == '.', c == 'E':
			if len(s.text) < maxKept {
				s.text = append(s.text, c)
			} else {
				s.cut = true
			}
		default:
			s.endWord()
			return p[i:]
		}
	}
	return nil
}

// endWord follows a number or literal.
func (s *scanner) endWord() {
	if s.state == inNumber {
		s.endScalar('0')
		return
	}
	switch word := string(s.text); word {
	case "true", "false", "null":
		s.endScalar(word[0])
	default:
		s.state = inBroken
	}
}

// endScalar follows a string, number or literal.
func (s *scanner) endScalar(kind byte) {
	if s.watch {
		s.watch = false
		s.refers.refersTo(kind, s.text)
	}
	if s.placed() {
		s.to.value(s.path, kind, s.text, s.cut)
	}
	s.ended()
}
