package downstream

import (
	"encoding/binary"
	"io"
	"math"
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
	errProtocol    = http2.ConnectionError(http2.ErrCodeProtocol)
	errFrameSize   = http2.ConnectionError(http2.ErrCodeFrameSize)
	errFlowControl = http2.ConnectionError(http2.ErrCodeFlowControl)
	errCompression = http2.ConnectionError(http2.ErrCodeCompression)
	errCalm        = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
)

func streamError(stream uint32, code http2.ErrCode) error {
	return http2.StreamError{StreamID: stream, Code: code}
}

// frame reads the payload of a frame and handles it.
func (c *conn) frame(h http2.FrameHeader) error {
	payload := c.in.Arrived(int(h.Length))
	if payload == nil {
		payload = c.small[:min(int(h.Length), len(c.small))]
		if int(h.Length) > len(c.small) {
			buf := frameBuffers.Get()
			defer frameBuffers.Put(buf)
			payload = (*buf)[:h.Length]
		}
		if _, err := io.ReadFull(&c.in, payload); err != nil {
			return err
		}
	}
	if !c.settled {
		if h.Type != http2.FrameSettings {
			return errProtocol
		}
		c.settled = true
		c.mu.Lock()
		c.limitRead()
		c.mu.Unlock()
	}
	if h.Type != http2.FrameData && c.empty.Excessive(h, len(payload)) {
		return errCalm
	}
	return c.handle(h, payload)
}

// handle handles a frame by its type.
func (c *conn) handle(h http2.FrameHeader, payload []byte) error {
	switch h.Type {
	case http2.FrameHeaders:
		return c.headers(h, payload)
	case http2.FrameContinuation:
		return c.fragment(payload, h.Flags.Has(http2.FlagContinuationEndHeaders))
	case http2.FrameData:
		return c.data(h, payload)
	case http2.FramePushPromise:
		return errProtocol
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.budget.Spend() {
		return errCalm
	}
	c.crowded = c.out.controls > controlMax/10
	switch h.Type {
	case http2.FrameSettings:
		return c.settings(h, payload)
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, payload)
	case http2.FrameRSTStream:
		return c.rstStream(h, payload)
	case http2.FramePing:
		return c.ping(h, payload)
	case http2.FramePriority:
		return priority(h, payload)
	case http2.FrameGoAway:
		return c.clientLeaves(h, payload)
	}
	return nil // unknown types are ignored (5.5)
}

func (c *conn) data(h http2.FrameHeader, payload []byte) error {
	if h.StreamID == 0 {
		return errProtocol
	}
	content, err := h2.Unpadded(h, payload)
	if err != nil {
		return err
	}
	if c.empty.Excessive(h, len(content)) {
		return errCalm
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	if !c.recv.Take(len(payload)) {
		return errFlowControl
	}
	s := c.streams[h.StreamID]
	switch {
	case h.StreamID > c.last && !c.draining || h.StreamID%2 == 0:
		return errProtocol // never opened
	case s == nil || s.remoteEnded:
		if len(payload) == 0 && !c.budget.Spend() {
			return errCalm
		}
		c.consumed(len(payload))
		if slices.Contains(c.reset, h.StreamID) || h.StreamID > c.last {
			return nil
		}
		return streamError(h.StreamID, http2.ErrCodeStreamClosed)
	}
	return s.receive(content, len(payload), h.Flags.Has(http2.FlagDataEndStream))
}

// consumed lets the client send n bytes more on the connection.
func (c *conn) consumed(n int) {
	if n = c.recv.Return(n); n > 0 {
		c.out.windowUpdate(0, n)
	}
	c.out.kick()
}

func (c *conn) settings(h http2.FrameHeader, payload []byte) error {
	ack := h.Flags.Has(http2.FlagSettingsAck)
	switch {
	case ack && len(payload) > 0:
		return errFrameSize
	case h.StreamID != 0:
		return errProtocol
	case len(payload)%settingSize != 0:
		return errFrameSize
	case len(payload) > settingsMax*settingSize:
		return errProtocol
	case ack:
		if c.unacked--; c.unacked < 0 {
			return errProtocol
		}
		return nil
	}
	first := c.out.first
	for ; len(payload) > 0; payload = payload[settingSize:] {
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(payload)), Val: binary.BigEndian.Uint32(payload[2:])}
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			first = int(s.Val) // of several the last one counts (6.5.3)
		case http2.SettingNoRFC7540Priorities:
			if s.Val > 1 {
				return errProtocol
			}
		}
	}
	if err := c.resize(first); err != nil {
		return err
	}
	c.out.settingsAck()
	c.out.kick()
	return nil
}

const (
	settingSize = 6   // bytes: an identifier of two, a value of four
	settingsMax = 100 // in one frame
)

// resize changes the windows of all streams as if they had begun with a size of first (6.9.2).
func (c *conn) resize(first int) error {
	by := first - c.out.first
	if by == 0 {
		return nil
	}
	c.out.first = first
	for _, s := range c.streams {
		if !s.send.Add(by) {
			return errFlowControl
		}
		s.writable.Signal()
	}
	return nil
}

func (c *conn) windowUpdate(h http2.FrameHeader, payload []byte) error {
	if len(payload) != 4 {
		return errFrameSize
	}
	by := int(binary.BigEndian.Uint32(payload) & math.MaxInt32)
	switch s := c.streams[h.StreamID]; {
	case h.StreamID == 0 && by == 0, c.unopened(h.StreamID):
		return errProtocol
	case h.StreamID == 0:
		if !c.out.send.Add(by) {
			return errFlowControl
		}
		c.out.pass()
	case by == 0:
		return streamError(h.StreamID, http2.ErrCodeProtocol)
	case s != nil:
		if !s.send.Add(by) {
			return streamError(h.StreamID, http2.ErrCodeFlowControl)
		}
		s.writable.Signal()
	}
	return nil
}

// unopened reports whether a frame belongs to a stream that the client has not opened. After a GOAWAY it may have opened
// streams that are ignored.
func (c *conn) unopened(stream uint32) bool {
	return stream != 0 && (stream%2 == 0 || stream > c.last && !c.draining)
}

func (c *conn) rstStream(h http2.FrameHeader, payload []byte) error {
	switch {
	case len(payload) != 4:
		return errFrameSize
	case h.StreamID == 0, c.unopened(h.StreamID):
		return errProtocol
	}
	if s := c.streams[h.StreamID]; s != nil {
		c.beginWaiting() // it counts as handled if it can be
		code := http2.ErrCode(binary.BigEndian.Uint32(payload))
		c.closeStream(s, http2.StreamError{StreamID: s.id, Code: code})
		if !s.begun {
			return c.cancelled(s)
		}
	}
	return nil
}

// cancelled reports a request that its client reset before a handler was free for it.
func (c *conn) cancelled(s *Stream) error {
	if c.early++; c.early > waitingMax { // CVE-2023-44487
		return errCalm
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Refused(Refusal{Method: s.Method, Path: s.Path, Why: "the client reset the stream before it was handled"})
	return nil
}

func (c *conn) ping(h http2.FrameHeader, payload []byte) error {
	switch {
	case len(payload) != 8:
		return errFrameSize
	case h.StreamID != 0:
		return errProtocol
	case !h.Flags.Has(http2.FlagPingAck):
		c.out.ping(payload)
		c.out.kick()
	}
	return nil
}

// priority checks a frame that is otherwise ignored, as our SETTINGS_NO_RFC7540_PRIORITIES announces (RFC 9218, 2.1).
func priority(h http2.FrameHeader, payload []byte) error {
	switch {
	case h.StreamID == 0:
		return errProtocol
	case len(payload) != h2.PrioritySize:
		return errFrameSize
	case dependsOnItself(h, payload):
		return streamError(h.StreamID, http2.ErrCodeProtocol)
	}
	return nil
}

func dependsOnItself(h http2.FrameHeader, priority []byte) bool {
	return binary.BigEndian.Uint32(priority)&math.MaxInt32 == h.StreamID
}

// clientLeaves handles a GOAWAY of the client.
func (c *conn) clientLeaves(h http2.FrameHeader, payload []byte) error {
	switch {
	case h.StreamID != 0:
		return errProtocol
	case len(payload) < 8:
		return errFrameSize
	}
	c.drain()
	return nil
}

// refuseStream resets a stream whose client broke the protocol. It calls Config.Refused unless the stream has a handler, which
// fails, or had one.
func (c *conn) refuseStream(e http2.StreamError) {
	if !c.abort(e) && e.Code != http2.ErrCodeStreamClosed {
		c.cfg.Refused(Refusal{Why: "the stream is reset with " + e.Code.String()})
	}
}

// abort resets a stream, and reports whether it has a handler.
func (c *conn) abort(e http2.StreamError) (handled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetStream(e.StreamID, e.Code)
	s := c.streams[e.StreamID]
	if s == nil {
		return false
	}
	c.closeStream(s, e)
	return s.begun
}

// resetStream sends a reset and remembers the stream: the client may have sent frames before it receives the reset (5.4.2).
func (c *conn) resetStream(stream uint32, code http2.ErrCode) {
	if len(c.reset) == resetMax {
		c.reset = append(c.reset[:0], c.reset[1:]...)
	}
	c.reset = append(c.reset, stream)
	c.out.reset(stream, code)
	c.out.kick()
}

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
	// Clients that split a cookie line of a program at its semicolons leave blanks. They stay within the line that is joined again.
	if !httpguts.ValidHeaderFieldValue(f.Value) || f.Name != "cookie" && strings.Trim(f.Value, " \t") != f.Value {
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
