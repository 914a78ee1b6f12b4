package downstream

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// Head is the head of a request, as its client sent it.
type Head struct {
	Method, Scheme, Path string // of the pseudo-header fields; empty if missing
	Authority            string // or Host
	Protocol             string // of an extended CONNECT (RFC 8441)
	Fields               []hpack.HeaderField
	// Length is the declared length of the body: -1 if it is not declared, 0 without a body.
	Length int64
}

// open begins a request, or refuses it.
func (c *conn) open(b *block) error {
	id := b.frame.StreamID
	c.last = id
	c.crowded = c.out.controls > controlMax/10
	c.budget.Earn(earnedByRequest)
	if b.large {
		c.tooLarge(b)
		return nil
	}
	head, fault := b.request()
	if fault == "" && b.selfish {
		fault = "a stream that depends on itself"
	}
	if fault != "" {
		c.refuse(b, http2.ErrCodeProtocol, fault)
		return nil
	}
	if len(c.streams) >= h2.Streams {
		c.refuse(b, http2.ErrCodeRefusedStream, "more requests at a time than allowed")
		return nil
	}
	s := &Stream{Head: head, memory: b.memory, c: c, id: id, remoteEnded: b.ended(), recv: h2.NewReceiveWindow(StreamWindow, StreamWindow/4)}
	s.send.Add(c.out.first)
	s.readable.L, s.writable.L = &c.mu, &c.mu
	c.streams[id] = s
	c.waiting = append(c.waiting, s)
	return nil
}

const earnedByRequest = 4

func (b *block) ended() bool { return b.frame.Flags.Has(http2.FlagHeadersEndStream) }

// refuse resets the stream of a request that no handler sees. The caller holds mu, which refuse releases while it calls Refused.
func (c *conn) refuse(b *block, code http2.ErrCode, why string) {
	c.resetStream(b.frame.StreamID, code)
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Refused(Refusal{
		Method: b.value(":method"), Path: b.value(":path"), Why: "the stream is reset with " + code.String() + ": " + why,
	})
}

// tooLarge answers a request whose head exceeds headMax.
func (c *conn) tooLarge(b *block) {
	id := b.frame.StreamID
	c.out.head(id, 431, nil, true)
	if !b.ended() {
		c.resetStream(id, http2.ErrCodeNo)
	}
	c.out.control()
	c.out.kick()
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Refused(Refusal{Method: b.value(":method"), Path: b.value(":path"), Why: "the request head is too large"})
}

// request returns the request of a header block, or the reason why it is malformed.
func (b *block) request() (h Head, fault string) {
	if b.fault != "" {
		return h, b.fault
	}
	h = Head{
		Method: b.value(":method"), Scheme: b.value(":scheme"), Authority: b.value(":authority"), Path: b.value(":path"),
		Protocol: b.value(":protocol"), Fields: b.fields[b.pseudo:],
	}
	if !h.complete() {
		return h, "pseudo-header fields that make no request"
	}
	if !h.ownAuthority() {
		return h, "an authority that is not allowed"
	}
	if !b.ended() {
		h.Length = h.declared()
	}
	return h, ""
}

// complete reports whether the pseudo-header fields make a request (8.3.1, 8.5; RFC 8441, 4).
func (h *Head) complete() bool {
	if h.Method == "CONNECT" && h.Protocol == "" {
		return h.Path == "" && h.Scheme == "" && h.Authority != ""
	}
	if h.Protocol != "" && h.Method != "CONNECT" {
		return false
	}
	if h.Method != "CONNECT" && h.Scheme != "https" && h.Scheme != "http" {
		return false
	}
	return h.Method != "" && (h.Path == "*" || strings.HasPrefix(h.Path, "/"))
}

// ownAuthority sets a missing authority from Host. It reports whether there is only one authority, without a user name.
func (h *Head) ownAuthority() bool {
	hosts := 0
	for _, f := range h.Fields {
		if f.Name != "host" {
			continue
		}
		if hosts++; h.Authority == "" {
			h.Authority = f.Value
		}
		if hosts > 1 || f.Value != h.Authority {
			return false
		}
	}
	return !strings.Contains(h.Authority, "@") && httpguts.ValidHostHeader(h.Authority)
}

// declared returns the declared length of a body, or -1. An invalid length counts as 0, which allows no content.
func (h *Head) declared() int64 {
	for _, f := range h.Fields {
		if f.Name == "content-length" {
			n, err := strconv.ParseUint(f.Value, 10, 63)
			if err != nil {
				return 0
			}
			return int64(n)
		}
	}
	return -1
}

// beginWaiting starts the handlers of waiting streams, as many as may run, unless startWaiting is running. The caller holds mu.
func (c *conn) beginWaiting() {
	n := min(len(c.waiting), h2.Streams-c.running)
	if n <= 0 || c.ended != nil || c.starting {
		return
	}
	for _, s := range c.waiting[:n] {
		c.begin(s)
	}
	c.waiting = slices.Delete(c.waiting, 0, n)
}

// begin starts the handler of a stream in an idle goroutine, whose stack has already grown, or in a new one. The caller holds
// mu.
func (c *conn) begin(s *Stream) {
	s.begun = true
	c.running++
	c.launch(s)
}

// launch serves a stream in a goroutine. The caller holds mu.
func (c *conn) launch(s *Stream) {
	c.working++
	c.busiest = max(c.busiest, c.working)
	if n := len(c.spare); n > 0 {
		c.spare[n-1] <- s
		c.spare = c.spare[:n-1]
		return
	}
	c.run.Go(func() {
		next := make(chan *Stream, 1)
		for s := s; s != nil; s = <-next {
			c.serve(s)
			c.done(s, next)
		}
	})
}

// serve runs the handler of a stream, or continues its task.
func (c *conn) serve(s *Stream) {
	defer c.contain()
	if s.task != nil {
		s.task.Serve()
		return
	}
	c.cfg.Handler(s)
}

// contain ends the connection after a panic.
func (c *conn) contain() {
	if v := recover(); v != nil {
		c.cfg.Panicked(v)
		c.end(errClosed)
	}
}

// done ends a stream whose handler has returned. Its goroutine receives another stream from next, or nil to end.
func (c *conn) done(s *Stream, next chan *Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	c.finish(s)
	if !c.keep() {
		next <- nil
		c.beginWaiting()
		return
	}
	c.spare = append(c.spare, next)
	if c.lull == nil {
		c.lull = time.AfterFunc(lullTime, c.onLull)
	}
	c.beginWaiting()
}

// finish ends a stream that has been served. The caller holds mu.
func (c *conn) finish(s *Stream) {
	s.pending, s.delay = nil, nil // its wait must not continue the task
	switch {
	case s.closed:
	case s.localEnded && !s.remoteEnded:
		s.unread = true
		time.AfterFunc(bodyGrace, func() { c.abandon(s) })
	default: // the response must not look complete
		c.resetStream(s.id, http2.ErrCodeInternal)
		c.closeStream(s, errEnded)
	}
	s.drop()
	s.cancelLocked(nil)
	c.running--
	c.early = 0
	s.forget()
}

// forget releases the memory of a head whose handler has returned.
func (s *Stream) forget() {
	if s.Fields = nil; s.memory != nil {
		*s.memory = usualFields{}
		fieldLists.Put(s.memory)
		s.memory = nil
	}
}

// abandon resets a stream whose client has not yet sent the rest of an unwanted body (RFC 9113, 8.1). The response is complete,
// but some clients treat a reset during an upload as a failure, whatever its code: hence bodyGrace.
func (c *conn) abandon(s *Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return
	}
	c.resetStream(s.id, http2.ErrCodeNo)
	c.closeStream(s, errEnded)
}

// closeStream ends a stream in both directions. A nil reason is the normal end; the handler may then continue. The caller
// holds mu.
func (c *conn) closeStream(s *Stream, why error) {
	if s.closed {
		return
	}
	s.closed, s.err = true, why
	delete(c.streams, s.id)
	if why != nil {
		s.drop()
		s.cancelLocked(nil)
	}
	s.readable.Broadcast()
	s.writable.Broadcast()
	if !s.begun {
		c.waiting = slices.DeleteFunc(c.waiting, func(w *Stream) bool { return w == s })
	}
	c.rest()
}

// Stream is one request and its response. Its methods may be called by several goroutines: one may read, one may write.
type Stream struct {
	Head                // its Fields are valid until the handler returns
	memory *usualFields // of Fields; nil if they have other memory
	task   Task         // serves the request instead of the handler
	c      *conn
	id     uint32

	// Guarded by the connection's mu.
	ctx         context.Context         // a context of the standard library; nil until it is needed
	cancel      context.CancelCauseFunc // likewise
	cancelled   atomic.Bool             // the context has ended, whether ctx was made or not; written under mu
	cause       error                   // why; written before cancelled
	pending     Pending                 // the wait that ends with the context; may be nil
	begun       bool                    // has a handler
	closed      bool                    // was removed from the connection's streams
	err         error                   // why, if closed
	remoteEnded bool                    // the client has ended the request
	localEnded  bool                    // the response has ended
	answered    bool                    // the final head of the response was written
	continued   bool                    // the client was asked for the body
	unread      bool                    // the body is not wanted
	late        bool                    // unread because the body did not arrive in time

	readLimit, writeLimit time.Duration // 0: no limit

	recv     h2.ReceiveWindow
	in       inbox
	received int64
	trailers []hpack.HeaderField
	readable sync.Cond

	send     h2.SendWindow
	queued   bool
	last     int       // position of its last frame in the batch
	batch    uint64    // number of that batch
	delay    *h2.Batch // written at the end of it; nil: immediately
	writable sync.Cond
}
