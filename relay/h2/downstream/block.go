package downstream

import (
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

const (
	headMax   = h2.HeadRead + 10*32 // size of a header list as RFC 9113, 6.5.2 counts it
	headsCost = 384 << 10           // memory of a header block in several frames: decoded, up to headMax
	usualHead = 16                  // fields
)

// block is a header block as it is decoded.
type block struct {
	frame   http2.FrameHeader // HEADERS
	selfish bool              // the stream depends on itself
	fields  []hpack.HeaderField
	memory  *usualFields // of fields, unless there are more
	pseudo  int          // how many of fields are pseudo-header fields: they come first
	size    int
	large   bool   // larger than headMax; fields are incomplete
	fault   string // the first reason why it is malformed
}

// usualFields is memory for the fields of a head.
type usualFields [usualHead]hpack.HeaderField

var fieldLists = sync.Pool{New: func() any { return &usualFields{} }}

func borrowFields() *usualFields {
	f, ok := fieldLists.Get().(*usualFields)
	if !ok {
		panic("downstream: a foreign value among the lists of fields")
	}
	return f
}

// add appends a decoded field and reports whether the block is still well-formed. A known field was checked when it came
// first, except for the order of pseudo-header fields.
func (b *block) add(f hpack.HeaderField, known bool) (sound bool) {
	if b.size += int(f.Size()); b.size > headMax {
		b.large = true
		return false
	}
	if b.fault == "" && (!known || f.Name[0] == ':') {
		b.fault = b.check(f)
	}
	if b.fields == nil {
		b.memory = borrowFields()
		b.fields = b.memory[:0]
	}
	b.fields = append(b.fields, f)
	return b.fault == ""
}

// check returns the reason why a field makes its block malformed (RFC 9113, 8.1 to 8.3), or "".
func (b *block) check(f hpack.HeaderField) string {
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		return "a field value that is not allowed"
	}
	if strings.HasPrefix(f.Name, ":") {
		return b.checkPseudo(f.Name)
	}
	if !validName(f.Name) {
		return "a field name that is not allowed"
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return "a field of HTTP/1.1 connections"
	case "te":
		if f.Value != "trailers" {
			return "a field of HTTP/1.1 connections"
		}
	}
	return ""
}

func (b *block) checkPseudo(name string) string {
	switch name {
	case ":method", ":scheme", ":authority", ":path", ":protocol":
	default:
		return "an unknown pseudo-header field"
	}
	if b.pseudo != len(b.fields) {
		return "a pseudo-header field behind other fields"
	}
	if slices.ContainsFunc(b.fields, func(f hpack.HeaderField) bool { return f.Name == name }) {
		return "a pseudo-header field twice"
	}
	b.pseudo++
	return ""
}

// validName reports whether a name is a token without capital letters (8.2.1).
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; 'A' <= c && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return name != ""
}

func (b *block) value(name string) string {
	for i := range b.fields[:min(b.pseudo, len(b.fields))] {
		if b.fields[i].Name == name {
			return b.fields[i].Value
		}
	}
	return ""
}

// headers handles a HEADERS frame.
func (c *conn) headers(h http2.FrameHeader, payload []byte) error {
	if h.StreamID%2 == 0 {
		return errProtocol
	}
	priority, fragment, err := h2.HeadFragment(h, payload)
	if err != nil {
		return err
	}
	selfish := priority != nil && dependsOnItself(h, priority)
	c.block = block{frame: h, selfish: selfish}
	whole := h.Flags.Has(http2.FlagHeadersEndHeaders)
	if !whole {
		if !c.heads.Grow(headsCost) {
			return errCalm
		}
		c.awaitEnd(time.Now())
	}
	return c.fragment(fragment, whole)
}

// awaitEnd records when the incomplete header block began. The zero time means that all blocks are complete.
func (c *conn) awaitEnd(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unended = since
	c.limitRead()
}

// fragment decodes a part of a header block.
func (c *conn) fragment(payload []byte, last bool) error {
	if c.block.large {
		return errProtocol // no end in sight
	}
	if c.hpack.Write(payload) != nil {
		return errCompression
	}
	if !last {
		return nil
	}
	if !c.unended.IsZero() { // written by this goroutine only
		c.heads.Release()
		c.awaitEnd(time.Time{})
	}
	if c.hpack.Close() != nil {
		return errCompression
	}
	b := c.block
	c.block = block{}
	return c.decoded(&b)
}

// decoded handles a complete header block.
func (c *conn) decoded(b *block) error {
	id := b.frame.StreamID
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	if s := c.streams[id]; s != nil {
		return s.receiveTrailers(b)
	}
	switch {
	case id > c.last && !c.draining:
		return c.open(b)
	case id > c.last, slices.Contains(c.reset, id): // sent before the client knew
		if !c.budget.Spend() {
			return errCalm
		}
		return nil
	}
	return errProtocol
}
