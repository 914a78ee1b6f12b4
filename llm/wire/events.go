package wire

import "bytes"

// events splits a stream of server-sent events (WHATWG HTML, 9.2.6) as it arrives. Each event's data goes to a scanner. The zero value is
// ready after to is set. Not safe for concurrent use.
type events struct {
	to    *scanner
	ended func(data []byte) // after each event with data; data are its first bytes

	state   lineState
	name    [5]byte // of the field, as far as it may be "data" or a byte order mark
	named   int
	afterCR bool // a line feed belongs to the end of line before it
	lines   int  // lines of data in the event
	first   [8]byte
	kept    int // bytes in first
}

// lineState is the part of a line.
type lineState uint8

const (
	inName lineState = iota
	inSpace
	inData
	inOther // a field that does not matter, or a comment
)

// feed takes the next piece of the stream.
func (e *events) feed(p []byte) {
	for len(p) > 0 {
		if e.afterCR {
			if e.afterCR = false; p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		switch c := p[0]; {
		case c == '\n' || c == '\r':
			e.endLine()
			e.afterCR = c == '\r'
			p = p[1:]
		case e.state == inName:
			e.nameByte(c)
			p = p[1:]
		case e.state == inSpace:
			if e.state = inData; c == ' ' {
				p = p[1:]
			}
		default:
			line := p
			if n := bytes.IndexByte(line, '\n'); n >= 0 {
				line = line[:n]
			}
			if n := bytes.IndexByte(line, '\r'); n >= 0 {
				line = line[:n]
			}
			if e.state == inData {
				e.data(line)
			}
			p = p[len(line):]
		}
	}
}

const (
	dataField = "data"
	byteOrder = "\ufeff"
)

// nameByte takes a byte of the name of a field.
func (e *events) nameByte(c byte) {
	if c == ':' {
		e.beginValue()
		return
	}
	if e.named == len(e.name) {
		e.state = inOther
		return
	}
	e.name[e.named] = c
	if e.named++; string(e.name[:e.named]) == byteOrder {
		e.named = 0
	}
}

// beginValue follows the name of a field.
func (e *events) beginValue() {
	e.state = inOther
	if string(e.name[:e.named]) != dataField {
		return
	}
	e.state = inSpace
	if e.lines++; e.lines > 1 {
		e.data([]byte("\n"))
	}
}

func (e *events) data(p []byte) {
	e.kept += copy(e.first[e.kept:], p)
	e.to.feed(p)
}

// endLine follows a line. An empty one ends an event.
func (e *events) endLine() {
	empty := e.state == inName && e.named == 0
	e.state, e.named = inName, 0
	if empty {
		e.end()
	}
}

// end ends an event, also one that the stream ended in.
func (e *events) end() {
	if e.lines == 0 {
		return
	}
	e.ended(e.first[:e.kept])
	e.to.reset()
	e.lines, e.kept = 0, 0
}
