package upstream

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/h1"
	"boxgate/internal/h2"
	"boxgate/internal/socket"
)

const (
	// StreamWindow is what a server may send ahead on a stream whose response is not read.
	StreamWindow = 256 << 10
	// ConnWindow is the same for a connection: more than all of its streams together, so that none blocks the others.
	ConnWindow = 64 << 20
	// MaxStreams is the number of concurrent streams of a connection, if the server allows as many.
	MaxStreams = 250

	firstStreams = 100     // before the server has told its limit
	connBatch    = 1 << 20 // of window updates
)

var (
	// errUnusable refuses a stream on a connection that has ended or is about to.
	errUnusable = errors.New("the HTTP/2 connection takes no more streams")
	errClosed   = errors.New("the HTTP/2 connection was closed")
	errHeadSize = errors.New("the request's head is larger than the server accepts")
)

// Conn is the client side of one HTTP/2 connection, used by many streams at once. Create it with [New]. Safe for
// concurrent use. No method except Open and those of its streams waits for anything.
type Conn struct {
	conn   net.Conn
	ended  func()
	over   sync.Once     // runs ended
	wake   chan struct{} // tells the writer that there is output; capacity 1
	in     h2.Input      // of the reader
	framer *http2.Framer // of the reader, and under mu for writing
	last   atomic.Int64  // when the last frame arrived, since began
	began  time.Time

	mu       sync.Mutex
	err      error // why the connection ends; set once
	streams  map[uint32]*Stream
	told     []*Stream       // something has come for them, of which their readers are not told yet
	calls    []call          // of the reader, kept for its memory
	reserved int             // streams that may be opened
	next     uint32          // the number of the next stream
	away     *h2.GoAwayError // that has come
	spent    bool            // takes no more streams, and is closed after those it has
	settings settings
	window   int // of the responses of new streams
	send     h2.SendWindow
	recv     h2.ReceiveWindow
	out      output
	crowd    waiters     // for room in the output
	stalled  waiters     // for a window
	unacked  bool        // our SETTINGS have not been acknowledged
	alive    *time.Timer // see check
	look     time.Time   // when check is called
	pinged   bool        // a PING of check is out
}

// New starts the client side of a connection on which HTTP/2 was agreed, and takes ownership of it. ended is called once
// when the connection has been closed, whoever closed it, without a lock held.
func New(conn net.Conn, ended func()) *Conn { return NewWindow(conn, ended, StreamWindow) }

// NewWindow is [New] with another limit than [StreamWindow].
func NewWindow(conn net.Conn, ended func(), window int) *Conn {
	c := &Conn{
		conn: conn, ended: ended, wake: make(chan struct{}, 1), began: time.Now(),
		streams: map[uint32]*Stream{}, next: 1, settings: firstSettings, window: window, unacked: true,
		recv: h2.NewReceiveWindow(ConnWindow, connBatch),
	}
	c.send.Add(h2.FirstWindow)
	c.in.Open(conn, c.caughtUp)
	c.framer = http2.NewFramer(&c.out, &c.in)
	c.framer.SetMaxReadFrameSize(h2.FrameMax)
	c.mu.Lock()
	c.out.text(http2.ClientPreface) // goes out with the first request
	_ = c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(window)},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: h2.FrameMax},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: h1.MaxHead},
	)
	_ = c.framer.WriteWindowUpdate(0, ConnWindow-h2.FirstWindow)
	c.alive = time.AfterFunc(pingAfter, c.check)
	c.look = c.began.Add(pingAfter)
	c.mu.Unlock()
	go c.write()
	go c.read()
	return c
}

// Reserve reserves a stream and reports whether there was one. The stream must be opened, or released.
func (c *Conn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usableLocked() != nil || len(c.streams)+c.reserved >= c.settings.streams {
		return false
	}
	c.reserved++
	return true
}

// Release gives a reserved stream back.
func (c *Conn) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved--
	c.restLocked()
}

// usableLocked returns why no stream can be opened, or nil.
func (c *Conn) usableLocked() error {
	if c.err != nil || c.spent || c.next > math.MaxInt32 {
		return errUnusable
	}
	return nil
}

// restLocked closes a spent connection once nobody uses it.
func (c *Conn) restLocked() {
	if c.spent && len(c.streams) == 0 && c.reserved == 0 {
		c.failLocked(errClosed)
	}
}

// Open sends a request's head on a stream that was reserved. It waits while the server does not read. If there is
// content to follow, the head may be kept back until some is written, or until the response is awaited.
func (c *Conn) Open(ctx context.Context, fields []hpack.HeaderField, end bool) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &Stream{c: c, ctx: ctx, news: make(chan struct{}, 1)}
	err := c.admitLocked(s, headSize(fields))
	c.reserved-- // not before: while it waits, nobody else may reserve it
	if err != nil {
		c.restLocked()
		return nil, err
	}
	c.beginLocked(s, fields, end)
	if end {
		c.flushLocked()
	}
	return s, nil
}

// beginLocked makes s the next stream of the connection and appends its head to the output.
func (c *Conn) beginLocked(s *Stream, fields []hpack.HeaderField, end bool) {
	s.id, s.bodiless, s.left, s.sent = c.next, isHead(fields), -1, end
	s.send.Add(c.settings.window)
	s.recv = h2.NewReceiveWindow(c.window, c.window/4)
	c.streams[s.id] = s
	c.next += 2
	s.again = end && canRepeat(fields)
	c.lookSoonLocked()
	c.out.head(s.id, end, fields)
}

// admitLocked waits for room in the output and reports whether a stream can be opened.
func (c *Conn) admitLocked(s *Stream, size int) error {
	for c.usableLocked() == nil && c.out.full() {
		if err := s.waitLocked(&c.crowd); err != nil {
			return err
		}
	}
	switch err := c.usableLocked(); {
	case err != nil:
		return err
	case len(c.streams) >= c.settings.streams: // the limit was lowered in the meantime
		return errUnusable
	case size > c.settings.headSize:
		return errHeadSize
	}
	return nil
}

// canRepeat reports whether a request without content can be sent again although the server may have handled it.
func canRepeat(fields []hpack.HeaderField) bool {
	i := slices.IndexFunc(fields, func(f hpack.HeaderField) bool { return f.Name == ":method" })
	return i >= 0 && (fields[i].Value == "GET" || fields[i].Value == "HEAD" || fields[i].Value == "OPTIONS")
}

func isHead(fields []hpack.HeaderField) bool {
	return slices.Contains(fields, hpack.HeaderField{Name: ":method", Value: "HEAD"})
}

// Close closes the connection at once, unless it is about to end on its own. Its streams fail.
func (c *Conn) Close() {
	c.mu.Lock()
	ending := c.err != nil // the writer tells the server why, and closes it
	c.failLocked(errClosed)
	c.mu.Unlock()
	if !ending {
		c.hangUp()
	}
}

// fail ends the connection. The server is told the reason if it takes it at once.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// goAwayTime is how long writing what is left may take once the connection ends.
const goAwayTime = 100 * time.Millisecond

func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.alive.Stop()
	for _, s := range c.streams {
		s.failLocked(err)
	}
	c.crowd.resume() // what waits in Open is not among the streams yet
	var broken *protocolError
	if errors.As(err, &broken) {
		_ = c.framer.WriteGoAway(0, broken.code, nil)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(goAwayTime))
	c.flushLocked()
}

// hangUp closes the connection below. A TLS close_notify could wait for a peer that does not read.
func (c *Conn) hangUp() {
	socket.Abort(c.conn)
	c.over.Do(c.ended)
}

const (
	// pingAfter is how long a server may send no frame before it is sent a PING. Servers of gRPC take more than a few PINGs in
	// five minutes in which they have sent nothing for abuse, and close (ENHANCE_YOUR_CALM); a host that is gone is noticed
	// by TCP, long before.
	pingAfter = 5*time.Minute + 30*time.Second
	pingWait  = 15 * time.Second // for any frame
	// lookAfter is when to look whether the server has acknowledged what was sent, and lookRest when to look again while
	// streams are open and nothing new was sent.
	lookAfter = socket.VanishedLook
	lookRest  = 10 * time.Second
)

// check looks whether the server is there: it sends a PING if that has been silent for long, and ends the connection if it
// stays silent, or acknowledges nothing.
func (c *Conn) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	silent := time.Since(c.began) - time.Duration(c.last.Load())
	switch {
	case silent < pingAfter:
		c.pinged = false
	case c.pinged:
		c.failLocked(errLost)
		return
	default:
		_ = c.framer.WritePing(false, [8]byte{})
		c.flushLocked()
		c.pinged = true
		c.lookLocked(pingWait)
		return
	}
	if len(c.streams) == 0 {
		c.lookLocked(pingAfter - silent)
		return
	}
	next := lookRest
	if silent < lookRest {
		next = lookAfter
	}
	if silent >= lookAfter && !c.acknowledgesLocked() {
		next = lookAfter
	}
	if c.err == nil {
		c.lookLocked(min(next, pingAfter-silent))
	}
}

// lookLocked has check be called in a while.
func (c *Conn) lookLocked(in time.Duration) {
	c.alive.Reset(in)
	c.look = time.Now().Add(in)
}

// lookSoonLocked has check be called soon after a stream was opened.
func (c *Conn) lookSoonLocked() {
	if !c.pinged && time.Until(c.look) > lookAfter {
		c.lookLocked(lookAfter)
	}
}

// acknowledgesLocked looks whether the server acknowledges what is sent. If it has not for a moment the connection takes no
// more streams, and those whose requests can be sent again fail; if it has not for long, all do.
func (c *Conn) acknowledgesLocked() bool {
	silent := socket.UnansweredBy(c.conn)
	switch {
	case silent >= socket.LostAfter:
		c.failLocked(errLost)
	case silent >= socket.VanishedAfter:
		c.spent = true
		for _, s := range c.streams {
			if s.again && !s.begun {
				s.failLocked(ErrVanished)
			}
		}
	default:
		return true
	}
	return false
}

// ErrVanished fails a stream whose server acknowledges nothing, and whose request can be sent again on another connection.
var ErrVanished = error(vanished{})

type vanished struct{ lost }

func (vanished) Error() string { return "the server acknowledges nothing any more" }

// errLost ends a connection whose server is silent; it counts as a timeout.
var errLost = error(lost{})

type lost struct{}

func (lost) Error() string   { return "the HTTP/2 connection was lost" }
func (lost) Timeout() bool   { return true }
func (lost) Temporary() bool { return false }
