package upstream

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/buffers"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
)

// protocolError ends a connection after a protocol error of the server. The code is sent to the server.
type protocolError struct{ code http2.ErrCode }

// Error returns the code.
func (e *protocolError) Error() string { return fmt.Sprintf("%v: %v", h2.ErrServer, e.code) }

// Unwrap returns h2.ErrServer.
func (e *protocolError) Unwrap() error { return h2.ErrServer }

func broken(code http2.ErrCode) error { return &protocolError{code} }

// endedMax is the number of remembered streams that the server has ended.
const endedMax = 64

// reader is the state of the reading goroutine.
type reader struct {
	*Conn
	started bool     // the server's first SETTINGS have arrived
	unknown uint32   // streams below it have been opened
	ended   []uint32 // most recently ended by the server, oldest first
	empty   h2.EmptyFrames
	block   block
}

// read reads frames until the connection ends.
func (c *Conn) read() {
	r := reader{Conn: c}
	r.block.init()
	var err error
	for err == nil {
		err = r.frame()
	}
	c.caughtUp()
	c.in.Close()
	c.fail(c.readError(err))
}

// caughtUp is called before the reading goroutine may block: it notifies the readers of streams. It reports whether there
// are streams.
func (c *Conn) caughtUp() (busy bool) {
	calls := c.news()
	for i, told := range calls {
		calls[i] = call{}
		told.watcher.Arrived(told.stream, &c.answered)
	}
	c.answered.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) > 0
}

// news notifies the readers that wait for streams, and returns the watchers to call, each once.
func (c *Conn) news() []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = c.calls[:0]
	for _, s := range c.told {
		s.told = false
		if s.watcher == nil {
			s.tellLocked()
			continue
		}
		c.calls = append(c.calls, call{s.watcher, s})
		s.watcher = nil
	}
	clear(c.told)
	c.told = c.told[:0]
	return c.calls
}

// readError returns the reason why the connection ends when it cannot be read.
func (c *Conn) readError(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil && !errors.Is(err, h2.ErrServer) {
		return c.away
	}
	return h1.NoEOF(err)
}

// frame reads and handles one frame. An error ends the connection.
func (r *reader) frame() error {
	h, err := r.framer.ReadFrameHeader()
	if err != nil {
		return framingError(err)
	}
	r.last.Store(int64(time.Since(r.began)))
	if err := r.judge(h); err != nil {
		return err
	}
	switch {
	case !known(h.Type), h.Type == http2.FramePriority && h.StreamID != 0 && h.Length == 5: // without meaning for a client
		return r.skip(int(h.Length))
	case h.Type == http2.FrameData:
		return r.data(h)
	case h.Type == http2.FrameHeaders, h.Type == http2.FrameContinuation:
		return r.head(h)
	}
	frame, err := r.framer.ReadFrameForHeader(h)
	if err != nil {
		return r.frameError(err)
	}
	return r.handle(frame)
}

// framingError returns the error for a frame that could not be read.
func framingError(err error) error {
	var code http2.ConnectionError
	switch {
	case errors.Is(err, http2.ErrFrameTooLarge):
		return broken(http2.ErrCodeFrameSize)
	case errors.As(err, &code):
		return broken(http2.ErrCode(code))
	}
	return err
}

// frameError handles a malformed frame, which may concern one stream only.
func (r *reader) frameError(err error) error {
	var one http2.StreamError
	if !errors.As(err, &one) {
		return framingError(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.malformedLocked(r.streams[one.StreamID], one.Code, "a malformed frame")
	return nil
}

func known(t http2.FrameType) bool { return t <= http2.FrameContinuation }

// judge checks a frame's header: order, stream, and frequency.
func (r *reader) judge(h http2.FrameHeader) error {
	switch {
	case !r.started && (h.Type != http2.FrameSettings || h.Flags.Has(http2.FlagSettingsAck)):
		return broken(http2.ErrCodeProtocol) // RFC 9113, 3.4
	case r.block.open && h.Type != http2.FrameContinuation, h.Type == http2.FramePushPromise: // push is disabled
		return broken(http2.ErrCodeProtocol)
	case !known(h.Type):
		return nil
	case h.Type != http2.FrameData && r.empty.Excessive(h, int(h.Length)):
		return broken(http2.ErrCodeEnhanceYourCalm)
	}
	r.started = true
	return r.judgeStream(h)
}

// judgeStream checks the stream of a frame (RFC 9113, 5.1).
func (r *reader) judgeStream(h http2.FrameHeader) error {
	id := h.StreamID
	if id == 0 || h.Type == http2.FramePriority {
		return nil
	}
	if id%2 == 0 || !r.opened(id) {
		return broken(http2.ErrCodeProtocol)
	}
	carries := h.Type == http2.FrameData || h.Type == http2.FrameHeaders
	if carries && slices.Contains(r.ended, id) {
		return broken(http2.ErrCodeStreamClosed)
	}
	if h.Type == http2.FrameRSTStream || carries && h.Flags.Has(http2.FlagDataEndStream) { // the same bit in HEADERS
		if len(r.ended) == endedMax {
			r.ended = slices.Delete(r.ended, 0, 1)
		}
		r.ended = append(r.ended, id)
	}
	return nil
}

// opened reports whether we have opened a stream.
func (r *reader) opened(id uint32) bool {
	if id >= r.unknown {
		r.mu.Lock()
		r.unknown = r.next
		r.mu.Unlock()
	}
	return id < r.unknown
}

func (r *reader) skip(n int) error {
	_, err := io.CopyN(io.Discard, &r.in, int64(n))
	return h1.NoEOF(err)
}

// head reads and handles a HEADERS or CONTINUATION frame.
func (r *reader) head(h http2.FrameHeader) error {
	part := r.in.Arrived(int(h.Length))
	if part == nil {
		buf := frames.Get()
		defer frames.Put(buf)
		part = (*buf)[:h.Length]
		if _, err := io.ReadFull(&r.in, part); err != nil {
			return h1.NoEOF(err)
		}
	}
	last := h.Flags.Has(http2.FlagHeadersEndHeaders) // the same bit in CONTINUATION
	if h.Type == http2.FrameContinuation {
		if !r.block.open || r.block.stream != h.StreamID {
			return broken(http2.ErrCodeProtocol)
		}
		return r.fragment(part, last)
	}
	if h.StreamID == 0 {
		return broken(http2.ErrCodeProtocol)
	}
	_, part, err := h2.HeadFragment(h, part)
	if err != nil {
		return framingError(err)
	}
	r.block.begin(h.StreamID, h.Flags.Has(http2.FlagHeadersEndStream))
	return r.fragment(part, last)
}

// handle handles any frame but DATA, HEADERS and CONTINUATION.
func (r *reader) handle(frame http2.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		return r.settingsLocked(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = r.framer.WritePing(true, f.Data)
			return r.answeredLocked()
		}
	case *http2.GoAwayFrame:
		r.goAwayLocked(f)
	case *http2.RSTStreamFrame:
		if s := r.streams[f.StreamID]; s != nil {
			r.refusedLocked(s, f.ErrCode)
		}
	case *http2.WindowUpdateFrame:
		return r.windowLocked(f)
	}
	return nil
}

// answeredLocked sends a frame that was appended in answer to the server. It limits the answers that a server can request
// without reading them.
func (c *Conn) answeredLocked() error {
	if c.out.answers++; c.out.answers > answerMax {
		return broken(http2.ErrCodeEnhanceYourCalm)
	}
	c.flushLocked()
	return nil
}

// refusedLocked handles a reset by the server.
func (c *Conn) refusedLocked(s *Stream, code http2.ErrCode) {
	if code == http2.ErrCodeProtocol { // its view of the connection differs from ours
		c.spent = true
	}
	s.failLocked(&h2.StreamError{Code: code, Peer: true})
	c.removeLocked(s)
}

// goAwayLocked handles GOAWAY: no more streams are opened, and those that the server will not process fail.
func (c *Conn) goAwayLocked(f *http2.GoAwayFrame) {
	c.spent = true
	if c.away == nil {
		c.away = &h2.GoAwayError{Code: f.ErrCode}
	} else if c.away.Code == http2.ErrCodeNo && f.ErrCode != http2.ErrCodeNo {
		c.away = &h2.GoAwayError{Code: f.ErrCode}
	}
	for id, s := range c.streams {
		if id > f.LastStreamID {
			// An error in answer to the first request would recur on the next connection.
			first := id == 1 && c.away.Code != http2.ErrCodeNo
			s.failLocked(&h2.GoAwayError{Code: c.away.Code, Above: !first})
			c.removeLocked(s)
		}
	}
	c.restLocked()
}

// windowLocked handles WINDOW_UPDATE.
func (c *Conn) windowLocked(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if !c.send.Add(int(f.Increment)) {
			return broken(http2.ErrCodeFlowControl)
		}
		c.stalled.resume()
		return nil
	}
	if s := c.streams[f.StreamID]; s != nil {
		if !s.send.Add(int(f.Increment)) {
			c.malformedLocked(s, http2.ErrCodeFlowControl, "a window that is too large")
			return nil
		}
		s.goOnLocked()
	}
	return nil
}

// removeLocked drops a stream that has ended on both sides or failed.
func (c *Conn) removeLocked(s *Stream) {
	if c.streams[s.id] == s {
		delete(c.streams, s.id)
		c.restLocked()
	}
}

// malformedLocked resets a stream because of invalid data from the server. s may be nil.
func (c *Conn) malformedLocked(s *Stream, code http2.ErrCode, why string) {
	if s != nil {
		s.resetLocked(code, &h2.StreamError{Code: code, Why: why})
	}
}

// frames is a pool of buffers for DATA frames.
var frames = buffers.NewPool(h2.FrameMax)

// data reads and handles a DATA frame.
func (r *reader) data(h http2.FrameHeader) error {
	if h.StreamID == 0 {
		return broken(http2.ErrCodeProtocol)
	}
	if part := r.in.Arrived(int(h.Length)); part != nil {
		return r.content(h, part)
	}
	buf := frames.Get()
	defer frames.Put(buf)
	part := (*buf)[:h.Length]
	if _, err := io.ReadFull(&r.in, part); err != nil {
		return h1.NoEOF(err)
	}
	return r.content(h, part)
}

// content handles the payload of a DATA frame.
func (r *reader) content(h http2.FrameHeader, payload []byte) error {
	piece, err := h2.Unpadded(h, payload)
	if err != nil {
		return framingError(err)
	}
	if r.empty.Excessive(h, len(piece)) {
		return broken(http2.ErrCodeEnhanceYourCalm)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dataLocked(h, piece)
}

// dataLocked handles the content of a DATA frame.
func (c *Conn) dataLocked(h http2.FrameHeader, piece []byte) error {
	s, size := c.streams[h.StreamID], int(h.Length)
	if !c.recv.Take(size) || s != nil && !s.recv.Take(size) {
		return broken(http2.ErrCodeFlowControl)
	}
	if s == nil { // we reset it
		c.consumedLocked(nil, size)
		return nil
	}
	if why := s.refuses(len(piece)); why != "" {
		c.consumedLocked(nil, size)
		c.malformedLocked(s, http2.ErrCodeProtocol, why)
		return nil
	}
	s.body.add(piece)
	if s.left >= 0 {
		s.left -= int64(len(piece))
	}
	if h.Flags.Has(http2.FlagDataEndStream) {
		c.endLocked(s)
	}
	if padding := size - len(piece); padding > 0 {
		c.consumedLocked(s, padding)
	}
	s.comeLocked()
	return nil
}

// refuses returns the reason why n bytes of content cannot be part of the response, or "".
func (s *Stream) refuses(n int) string {
	switch {
	case !s.begun:
		return "content before the head"
	case s.bodiless && n > 0:
		return "content of a response that has none"
	case s.left >= 0 && int64(n) > s.left:
		return errLong
	}
	return ""
}

const (
	errLong  = "more content than the response's length"
	errShort = "less content than the response's length"
)

// endLocked ends the response.
func (c *Conn) endLocked(s *Stream) {
	if s.left > 0 && !s.bodiless {
		c.malformedLocked(s, http2.ErrCodeProtocol, errShort)
		return
	}
	s.ended = true
	if s.sent {
		c.removeLocked(s)
	}
	s.comeLocked()
}

// consumedLocked returns flow-control credit for n bytes of a stream; s may be nil if it has ended.
func (c *Conn) consumedLocked(s *Stream, n int) {
	if c.err != nil {
		return
	}
	if add := c.recv.Return(n); add > 0 {
		_ = c.framer.WriteWindowUpdate(0, uint32(add))
		c.flushLocked()
	}
	if s == nil || s.ended || s.err != nil {
		return
	}
	if add := s.recv.Return(n); add > 0 {
		_ = c.framer.WriteWindowUpdate(s.id, uint32(add))
		c.flushLocked()
	}
}
