package upstream

import (
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/relay/h2"
)

const (
	blockMax    = 2 * h1.MaxHead // encoded bytes of a header block; larger ones end the connection
	interimsMax = 32             // 1xx heads of a stream
	interimSize = 32 << 10       // bytes of a stream's unread 1xx heads
)

// block is a header block being received. It is always decoded, because the compression state depends on it.
type block struct {
	dec     *h2.Decoder
	stream  uint32
	open    bool // begun and not ended
	end     bool // the stream ends with it
	raw     int  // encoded bytes
	size    int  // decoded, by RFC 9113, 6.5.2
	bad     string
	status  int
	regular bool // a regular field has arrived
	fields  []hpack.HeaderField
	list    *usualFields // memory of fields, unless there are more
}

// usualFields is memory for the fields of a head.
type usualFields [12]hpack.HeaderField

var fieldLists = sync.Pool{New: func() any { return &usualFields{} }}

func (b *block) init() {
	b.dec = h2.NewDecoder(h1.MaxHead, b.field)
}

// begin begins the block of a HEADERS frame.
func (b *block) begin(stream uint32, end bool) {
	*b = block{dec: b.dec, stream: stream, open: true, end: end}
}

// field is called for each field, and reports whether it is valid in itself. known fields were valid before.
func (b *block) field(f hpack.HeaderField, known bool) (sound bool) {
	if b.bad != "" {
		return false
	}
	if b.size += int(f.Size()); b.size > h1.MaxHead {
		b.bad, b.fields = "a head that is too large", nil
		return false
	}
	if f.IsPseudo() {
		b.pseudo(f)
		return false
	}
	if b.regular = true; !known {
		b.bad = malformed(f)
	}
	if b.bad == "" && !connectionSpecific(f.Name) {
		b.add(f)
	}
	return b.bad == ""
}

func (b *block) add(f hpack.HeaderField) {
	if b.list == nil {
		list, ok := fieldLists.Get().(*usualFields)
		if !ok {
			panic("upstream: a foreign value among the lists of fields")
		}
		b.list, b.fields = list, list[:0]
	}
	b.fields = append(b.fields, f)
}

// pseudo is called for each pseudo-header. Responses have one, as the first field.
func (b *block) pseudo(f hpack.HeaderField) {
	if f.Name != ":status" || b.regular || b.status != 0 {
		b.bad = "a pseudo-header that does not belong there"
		return
	}
	n, err := strconv.Atoi(f.Value)
	if err != nil || len(f.Value) != 3 || n < 100 {
		b.bad = "a status that is not three digits"
		return
	}
	b.status = n
}

// malformed returns why a field is not allowed (RFC 9113, 8.2.1), or "".
func malformed(f hpack.HeaderField) string {
	for i := range len(f.Name) {
		if c := f.Name[i]; 'A' <= c && c <= 'Z' {
			return "a field name in upper case"
		}
	}
	if !h1.ValidToken(f.Name) {
		return "a field name that is not a token"
	}
	if !h1.ValidValue(f.Value) {
		return "a control byte in a field value"
	}
	return ""
}

// connectionSpecific reports whether a field belongs to HTTP/1.1 connections. Some servers send such fields despite RFC
// 9113, 8.2.2; they are dropped.
func connectionSpecific(name string) bool {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// fragment decodes the fragment of a header block in a frame.
func (r *reader) fragment(part []byte, last bool) error {
	b := &r.block
	if b.raw += len(part); b.raw > blockMax {
		return broken(http2.ErrCodeEnhanceYourCalm)
	}
	if b.dec.Write(part) != nil {
		return broken(http2.ErrCodeCompression)
	}
	if !last {
		return nil
	}
	b.open = false
	if b.dec.Close() != nil {
		return broken(http2.ErrCodeCompression)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[b.stream]; s != nil {
		if why := r.headLocked(s, b); why != "" {
			r.malformedLocked(s, http2.ErrCodeProtocol, why)
		}
	}
	b.fields, b.list = nil, nil
	return nil
}

// headLocked handles a complete header block, a head or trailers. It returns the reason if it is malformed, or "".
func (c *Conn) headLocked(s *Stream, b *block) string {
	switch {
	case b.bad != "":
		return b.bad
	case s.begun:
		return c.trailersLocked(s, b)
	case b.status == 0:
		return "no status"
	case b.status == 101:
		return "a protocol switch, which HTTP/2 does not have"
	}
	h := Head{Status: b.status, Fields: b.fields, Length: -1, End: b.end}
	if h.Interim() {
		if s.interims++; b.end {
			return "an interim head that ends the stream"
		} else if s.queued += b.size; s.interims > interimsMax || s.queued > interimSize {
			return "too many interim heads"
		}
	} else if why := s.begin(&h); why != "" {
		return why
	} else {
		s.lists[0] = b.list
	}
	if s.heads == nil {
		s.heads = s.one[:0]
	}
	s.heads = append(s.heads, h)
	s.comeLocked()
	if b.end {
		c.endLocked(s)
	}
	return ""
}

// begin handles the final head of a response. It returns the reason if it is malformed, or "".
func (s *Stream) begin(h *Head) string {
	for _, f := range h.Fields {
		if f.Name != "content-length" {
			continue
		}
		n, err := strconv.ParseUint(f.Value, 10, 63)
		if err != nil || h.Length >= 0 && h.Length != int64(n) {
			return "a content-length that is not one number"
		}
		h.Length = int64(n)
	}
	s.begun, s.left = true, h.Length
	s.bodiless = s.bodiless || h.Status == 204 || h.Status == 304
	if h.End && !s.bodiless && h.Length > 0 {
		return errShort
	}
	return ""
}

// trailersLocked handles the trailers of a response.
func (c *Conn) trailersLocked(s *Stream, b *block) string {
	if !b.end {
		return "a second head"
	}
	if b.status != 0 {
		return "a pseudo-header that does not belong there"
	}
	s.trailers, s.lists[1] = b.fields, b.list
	c.endLocked(s)
	return ""
}
