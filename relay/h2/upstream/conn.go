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

	"boxgate/internal/socket"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
)

const (
	// StreamWindow is the number of bytes that a server may send on a stream whose response is not read.
	StreamWindow = 256 << 10
	// ConnWindow is the same for a connection: more than all of its streams together, so that they cannot block each other.
	ConnWindow = 64 << 20
	// MaxStreams is the number of concurrent streams of a connection, if the server allows as many.
	MaxStreams = 250

	firstStreams = 100     // before the server's SETTINGS
	connBatch    = 1 << 20 // of window updates
)

var (
	// errUnusable refuses a stream on a connection that has ended or is about to.
	errUnusable = errors.New("the HTTP/2 connection takes no more streams")
	errClosed   = errors.New("the HTTP/2 connection was closed")
	errHeadSize = errors.New("the request's head is larger than the server accepts")
)

// Conn is the client side of one HTTP/2 connection, shared by many streams. Create it with [New]. Safe for concurrent use.
// Only Open and methods of its streams block.
type Conn struct {
	conn   net.Conn
	ended  func()
	over   sync.Once     // runs ended
	wake   chan struct{} // signals output to the writer; capacity 1
	in     h2.Input      // used by the reader
	framer *http2.Framer // used by the reader, and under mu for writing
	last   atomic.Int64  // arrival of the last frame, relative to began
	began  time.Time

	mu       sync.Mutex
	err      error // why the connection ended; set once
	streams  map[uint32]*Stream
	told     []*Stream       // streams with arrived data, whose readers are not yet notified
	calls    []call          // used by the reader; kept to reuse its memory
	answered h2.Batch        // used by the reader: clients to which responses were sent
	reserved int             // streams that may be opened
	next     uint32          // ID of the next stream
	away     *h2.GoAwayError // received GOAWAY
	spent    bool            // accepts no more streams; closed after the present ones
	settings settings
	window   int // of responses of new streams
	send     h2.SendWindow
	recv     h2.ReceiveWindow
	out      output
	owed     bool        // it is in an h2.Batch
	crowd    waiters     // wait for space in the output
	stalled  waiters     // for a window
	unacked  bool        // our SETTINGS have not been acknowledged
	alive    *time.Timer // timer of check
	look     time.Time   // time of the next check
	pinged   bool        // a PING of check is unanswered
}

// New starts the client side of a connection that has negotiated HTTP/2, and takes ownership of it. ended is called once
// after the connection was closed by either side, without locks held.
func New(conn net.Conn, ended func()) *Conn { return NewWindow(conn, ended, StreamWindow) }

// NewWindow is [New] with another window than [StreamWindow].
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
	c.out.text(http2.ClientPreface) // sent with the first request
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

// Reserve reserves a stream, or returns false. A reserved stream must be opened or released.
func (c *Conn) Reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usableLocked() != nil || len(c.streams)+c.reserved >= c.settings.streams {
		return false
	}
	c.reserved++
	return true
}

// Release cancels a reservation.
func (c *Conn) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved--
	c.restLocked()
}

// usableLocked returns an error if no stream can be opened.
func (c *Conn) usableLocked() error {
	if c.err != nil || c.spent || c.next > math.MaxInt32 {
		return errUnusable
	}
	return nil
}

// restLocked closes a spent connection without streams or reservations.
func (c *Conn) restLocked() {
	if c.spent && len(c.streams) == 0 && c.reserved == 0 {
		c.failLocked(errClosed)
	}
}

// Open sends a request's head on a reserved stream. It blocks while the server does not read. If content follows, the head
// may be delayed until some is written or the response is awaited.
func (c *Conn) Open(ctx context.Context, fields []hpack.HeaderField, end bool) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &Stream{c: c, ctx: ctx, news: make(chan struct{}, 1)}
	err := c.admitLocked(s, headSize(fields))
	c.reserved-- // only now: no other may reserve it during the wait
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

// admitLocked waits for space in the output and returns an error if no stream can be opened.
func (c *Conn) admitLocked(s *Stream, size int) error {
	for c.usableLocked() == nil && c.out.full() {
		if err := s.waitLocked(&c.crowd); err != nil {
			return err
		}
	}
	switch err := c.usableLocked(); {
	case err != nil:
		return err
	case len(c.streams) >= c.settings.streams: // the limit was lowered during the wait
		return errUnusable
	case size > c.settings.headSize:
		return errHeadSize
	}
	return nil
}

// canRepeat reports whether a request without content can be repeated even if the server may have handled it.
func canRepeat(fields []hpack.HeaderField) bool {
	i := slices.IndexFunc(fields, func(f hpack.HeaderField) bool { return f.Name == ":method" })
	return i >= 0 && (fields[i].Value == "GET" || fields[i].Value == "HEAD" || fields[i].Value == "OPTIONS")
}

func isHead(fields []hpack.HeaderField) bool {
	return slices.Contains(fields, hpack.HeaderField{Name: ":method", Value: "HEAD"})
}

// Close closes the connection immediately, unless it is already ending. Its streams fail.
func (c *Conn) Close() {
	c.mu.Lock()
	ending := c.err != nil // the writer sends GOAWAY and closes it
	c.failLocked(errClosed)
	c.mu.Unlock()
	if !ending {
		c.hangUp()
	}
}

// fail ends the connection. GOAWAY is sent if the server reads it immediately.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// goAwayTime limits the time for writing the remaining output of an ending connection.
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
	c.crowd.resume() // streams waiting in Open are not in c.streams yet
	var broken *protocolError
	if errors.As(err, &broken) {
		_ = c.framer.WriteGoAway(0, broken.code, nil)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(goAwayTime))
	c.flushLocked()
}

// hangUp closes the underlying connection. A TLS close_notify could block on a peer that does not read.
func (c *Conn) hangUp() {
	socket.Abort(c.conn)
	c.over.Do(c.ended)
}

const (
	// pingAfter is the time without frames after which the server gets a PING. gRPC servers treat more than a few PINGs in
	// five minutes without data as abuse and close (ENHANCE_YOUR_CALM); TCP detects a lost host long before.
	pingAfter = 5*time.Minute + 30*time.Second
	pingWait  = 15 * time.Second // for any frame
	// lookAfter is the time after which to check whether the server has acknowledged sent data, and lookRest the interval
	// of further checks while streams are open and no new data is sent.
	lookAfter = socket.VanishedLook
	lookRest  = 10 * time.Second
)

// check tests whether the server is alive: it sends a PING after a long silence, and ends the connection if that is not
// answered or sent data is not acknowledged.
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

// lookLocked schedules check.
func (c *Conn) lookLocked(in time.Duration) {
	c.alive.Reset(in)
	c.look = time.Now().Add(in)
}

// lookSoonLocked schedules an early check after a stream was opened.
func (c *Conn) lookSoonLocked() {
	if !c.pinged && time.Until(c.look) > lookAfter {
		c.lookLocked(lookAfter)
	}
}

// acknowledgesLocked checks whether the server acknowledges sent data. After a moment without, the connection accepts no
// more streams, and those whose requests can be repeated fail; after a long time, all fail.
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

// ErrVanished fails a stream whose server does not acknowledge data, and whose request can be repeated on another
// connection.
var ErrVanished = error(vanished{})

type vanished struct{ lost }

func (vanished) Error() string { return "the server acknowledges nothing any more" }

// errLost ends a connection whose server is silent; it counts as a timeout.
var errLost = error(lost{})

type lost struct{}

func (lost) Error() string   { return "the HTTP/2 connection was lost" }
func (lost) Timeout() bool   { return true }
func (lost) Temporary() bool { return false }

// settings are a server's SETTINGS.
type settings struct {
	known    bool // received
	streams  int  // maximum of concurrent streams, at most MaxStreams
	window   int  // of a new stream
	headSize int  // of a request's head, by RFC 9113, 6.5.2
}

// firstSettings apply until the server's SETTINGS arrive.
var firstSettings = settings{streams: firstStreams, window: h2.FirstWindow, headSize: math.MaxInt}

// settingsLocked handles SETTINGS.
func (c *Conn) settingsLocked(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if !c.unacked {
			return broken(http2.ErrCodeProtocol)
		}
		c.unacked = false
		return nil
	}
	if !c.settings.known {
		c.settings.known, c.settings.streams = true, MaxStreams
	}
	if err := f.ForeachSetting(c.settingLocked); err != nil {
		return framingError(err)
	}
	_ = c.framer.WriteSettingsAck()
	c.stalled.resume()
	return c.answeredLocked()
}

// settingLocked handles one setting. A larger compression table and longer frames are not used.
func (c *Conn) settingLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingEnablePush:
		if s.Val != 0 { // RFC 9113, 6.5.2
			return broken(http2.ErrCodeProtocol)
		}
	case http2.SettingMaxConcurrentStreams:
		c.settings.streams = int(min(s.Val, MaxStreams))
	case http2.SettingMaxHeaderListSize:
		c.settings.headSize = int(s.Val)
	case http2.SettingInitialWindowSize:
		change := int(s.Val) - c.settings.window
		c.settings.window = int(s.Val)
		for _, stream := range c.streams {
			if !stream.send.Add(change) {
				return broken(http2.ErrCodeFlowControl)
			}
		}
	}
	return nil
}

// ResetCode returns the code of the server's reset if that is why the stream failed. It returns false for PROTOCOL_ERROR
// and FLOW_CONTROL_ERROR, which concern the connection to the server and must not be forwarded.
func ResetCode(err error) (code http2.ErrCode, ok bool) {
	var reset *h2.StreamError
	if !errors.As(err, &reset) || !reset.Peer || reset.Code == http2.ErrCodeProtocol || reset.Code == http2.ErrCodeFlowControl {
		return 0, false
	}
	return reset.Code, true
}

// Unprocessed reports whether the server did not process the request that failed with err, so that it can be repeated
// safely (RFC 9113, 8.7): the server reported so, or never received it.
func Unprocessed(err error) bool {
	var reset *h2.StreamError
	var away *h2.GoAwayError
	switch {
	case errors.As(err, &reset):
		return reset.Peer && reset.Code == http2.ErrCodeRefusedStream
	case errors.As(err, &away):
		return away.Above
	}
	return errors.Is(err, errUnusable)
}
