package downstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/buffers"
	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/relay/h2"
)

const (
	// StreamWindow is how much of a request's body may arrive before the handler reads it: little, as clients are near.
	StreamWindow = 64 << 10
	// ConnWindow is the same for all requests of a connection.
	ConnWindow = 1 << 20

	prefaceTime = 10 * time.Second       // for the preface and the first SETTINGS
	stackCost   = 16 << 10               // of a goroutine that has run a handler
	lullTime    = time.Second            // an idle goroutine that was not needed for so long ends
	blockTime   = 30 * time.Second       // for a header block in several frames
	goAwayTime  = time.Second            // from a GOAWAY to the end of the connection
	lingerMax   = 1 << 20                // bytes discarded by linger
	bodyGrace   = 100 * time.Millisecond // for the rest of a body whose request is answered
	waitingMax  = 4 * h2.Streams         // requests reset before their handler began, while no handler ends
	resetMax    = 128                    // streams remembered as reset by the server
)

// Config configures the service of a connection. All fields but Drain, Start and Sleeper are required.
type Config struct {
	Handler func(*Stream) // serves one request; the stream ends when it returns
	// Start begins a request in the goroutine that reads the connection; see [Stream.Take]. The batch is flushed after all requests
	// that have arrived together.
	Start    func(*Stream, *h2.Batch)
	Refused  func(Refusal)   // called for each request or connection that is refused here; must not block
	Panicked func(v any)     // called after a panic outside the handler; the connection has ended
	Memory   *memory.Account // for header blocks in several frames
	Idle     time.Duration   // the connection ends after so long without a request
	Drain    context.Context // once it is done, the connection accepts no more requests, and ends after the last one
	Sleeper  Sleeper         // nil: the memory of the connection is claimed for as long as it is open
}

// Refusal is a request that no handler sees, or a connection that ends because its client broke the protocol.
type Refusal struct {
	Method, Path string // of the request, if they are known
	Why          string
	Flood        bool // the client sends frames and does not read the answers
}

var (
	errClosed = errors.New("the client's connection is closed")
	errEnded  = errors.New("the stream has ended")
	errFlood  = errors.New("the client does not read the answers to what it sends")
)

// conn is one connection.
type conn struct {
	cfg    Config
	net    net.Conn
	ctx    context.Context
	direct *socket.Direct // below net; nil unless there is a Sleeper
	framer *http2.Framer  // reads the heads of frames
	in     h2.Input
	run    sync.WaitGroup

	// Owned by the goroutine that reads.
	hpack   *h2.Decoder
	block   block
	heads   memory.Claim // of a header block in several frames
	empty   h2.EmptyFrames
	settled bool     // the first SETTINGS have come
	crowded bool     // many answers to the client's frames await writing
	between bool     // at most a part of the next frame's header has been read
	tired   bool     // the connection sleeps before the next read
	begun   h2.Batch // connections to servers to which requests were sent
	small   [64]byte

	mu       sync.Mutex // guards the fields below and the streams
	streams  map[uint32]*Stream
	last     uint32   // the highest stream that the client has opened
	reset    []uint32 // streams reset by the server most recently
	running  int      // requests that are being served
	working  int      // of running: requests that have a goroutine
	waiting  []*Stream
	starting bool           // startWaiting is running
	spare    []chan *Stream // idle goroutines; nil ends one
	kept     int            // goroutines whose memory is claimed in stacks
	stacks   memory.Claim
	busiest  int         // the highest value of working since lull last ran
	lull     *time.Timer // runs while there are idle goroutines
	early    int         // streams reset while they waited, since a handler last ended
	budget   h2.Budget
	unacked  int // our SETTINGS that the client has not acknowledged
	draining bool
	ended    error     // why the connection ended; nil while it is open
	quiet    time.Time // when the last stream ended
	unended  time.Time // when the incomplete header block began; zero: all blocks are complete
	idle     *time.Timer
	until    time.Time // when the client must have sent more; zero: no limit
	lullAt   time.Time // the read deadline set by awaitLull; zero: there is another deadline, or no deadline

	recv h2.ReceiveWindow
	out  output
}

// Serve serves a connection until it ends, and closes it. All handlers have returned when Serve does.
func Serve(ctx context.Context, nc net.Conn, cfg Config) {
	c := &conn{cfg: cfg, net: nc, ctx: ctx, streams: map[uint32]*Stream{}, quiet: time.Now()}
	if c.direct, _ = socket.DirectOf(nc); c.direct == nil {
		c.cfg.Sleeper = nil // waiting without reading takes direct
	}
	c.in.Open(source{c}, c.caughtUp)
	defer c.in.Close()
	c.framer = http2.NewFramer(nil, &c.in)
	c.framer.SetMaxReadFrameSize(h2.FrameMax)
	c.hpack = h2.NewDecoder(headMax, c.block.add)
	c.heads.Open(cfg.Memory, memory.HTTP2)
	c.stacks.Open(cfg.Memory, memory.HTTP2)
	c.out.open(c)
	defer c.run.Wait()
	defer c.heads.Close()
	defer c.stacks.Close()
	defer c.end(errClosed)
	c.mu.Lock()
	c.idle = time.AfterFunc(cfg.Idle, c.onIdle)
	c.greet()
	c.mu.Unlock()
	if cfg.Drain != nil {
		defer context.AfterFunc(cfg.Drain, c.onDrain)()
	}
	defer context.AfterFunc(ctx, c.cancelAll)()
	err := c.read()
	c.caughtUp()
	c.close(err)
}

// caughtUp starts the waiting requests. It is called before the goroutine that reads may block, so that a request begins with
// as much of its body as has arrived. It reports whether the connection has streams.
func (c *conn) caughtUp() (busy bool) {
	defer c.begun.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Start != nil {
		c.startWaiting()
	}
	c.beginWaiting()
	if len(c.streams) == 0 && c.settled && !c.tired {
		c.awaitLull()
	}
	return len(c.streams) > 0
}

// greet sends the first SETTINGS and raises the connection's window.
func (c *conn) greet() {
	c.unacked++
	c.out.settings(
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: h2.FrameMax},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: h2.Streams},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: headMax},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: StreamWindow},
		http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1},
		http2.Setting{ID: http2.SettingNoRFC7540Priorities, Val: 1},
	)
	c.recv = h2.NewReceiveWindow(ConnWindow, ConnWindow/4)
	c.out.windowUpdate(0, ConnWindow-h2.FirstWindow)
	c.out.kick()
}

// read reads frames until the connection ends, and returns the reason.
func (c *conn) read() error {
	c.mu.Lock()
	if c.ended == nil {
		c.until = time.Now().Add(prefaceTime)
		_ = c.net.SetReadDeadline(c.until)
	}
	c.mu.Unlock()
	preface := c.small[:len(http2.ClientPreface)]
	if _, err := io.ReadFull(&c.in, preface); err != nil {
		return err
	}
	if !bytes.Equal(preface, []byte(http2.ClientPreface)) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	for {
		c.between = true
		h, err := c.framer.ReadFrameHeader()
		if c.between = false; err == nil {
			err = c.frame(h)
		}
		if c.crowded { // let the writing goroutine run before too many frames are queued
			c.crowded = false
			runtime.Gosched()
		}
		if err == nil {
			continue
		}
		if err := c.survives(err); err != nil {
			return err
		}
	}
}

// survives resets the stream that an error concerns, or returns the error if it ends the connection.
func (c *conn) survives(err error) error {
	var stream http2.StreamError
	switch {
	case errors.As(err, &stream):
		c.refuseStream(stream)
		return nil
	case errors.Is(err, http2.ErrFrameTooLarge):
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	return err
}

// close ends the connection, with a GOAWAY if the client broke the protocol.
func (c *conn) close(err error) {
	var code http2.ConnectionError
	switch {
	case errors.Is(err, errNoMemory):
		c.refuseNext()
	case errors.As(err, &code):
		c.goAway(http2.ErrCode(code))
		c.linger()
	}
	if errors.Is(c.over(), errFlood) {
		c.cfg.Refused(Refusal{Why: errFlood.Error(), Flood: true})
	}
}

// goAway sends a GOAWAY with the reason for the end of the connection. Streams end without another frame.
func (c *conn) goAway(code http2.ErrCode) {
	if c.sendGoAway(code) {
		c.cfg.Refused(Refusal{Why: "the connection is ended with " + code.String()})
	}
}

// sendGoAway reports whether the connection had not ended before.
func (c *conn) sendGoAway(code http2.ErrCode) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return false
	}
	for _, s := range c.streams {
		c.closeStream(s, errClosed)
	}
	c.draining = true
	c.out.goAway(c.last, code)
	c.out.kick()
	return true
}

// linger reads and discards the client's data for a while. An immediate close would reset the TCP connection, and the GOAWAY
// might not arrive.
func (c *conn) linger() {
	_ = c.net.SetReadDeadline(time.Now().Add(goAwayTime))
	buf := frameBuffers.Get()
	defer frameBuffers.Put(buf)
	for n := 0; n < lingerMax; {
		m, err := c.net.Read(*buf)
		if n += m; err != nil {
			return
		}
	}
}

// over returns the reason why the connection has ended, or nil.
func (c *conn) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// end closes the connection and ends its streams.
func (c *conn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(why)
}

func (c *conn) endLocked(why error) {
	if c.ended != nil {
		return
	}
	c.ended = why
	for _, s := range c.streams {
		c.closeStream(s, why)
	}
	c.idle.Stop()
	c.dismiss(len(c.spare))
	c.out.close()
	// Closing TLS may wait for the client to read, and for a write in progress.
	c.run.Go(func() { _ = c.net.Close() })
	_ = c.net.SetReadDeadline(time.Unix(1, 0))
}

// onIdle drains a connection that has been without requests for long enough.
func (c *conn) onIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.cfg.Idle - time.Since(c.quiet)
	switch {
	case c.ended != nil || c.draining:
	case len(c.streams) > 0:
		c.idle.Reset(c.cfg.Idle)
	case left > 0:
		c.idle.Reset(left)
	default:
		c.drain()
	}
}

func (c *conn) onDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
}

// drain accepts no more requests and ends the connection once those in progress have ended.
func (c *conn) drain() {
	if c.draining || c.ended != nil {
		return
	}
	c.draining = true
	c.out.goAway(c.last, http2.ErrCodeNo)
	c.out.kick()
	c.rest()
}

// rest marks the connection as idle if it has no streams.
func (c *conn) rest() {
	if len(c.streams) > 0 {
		return
	}
	if c.quiet = time.Now(); c.draining {
		c.limitRead()
	}
	c.awaitLull()
	c.out.idle()
}

// limitRead sets the read deadline for an incomplete header block and for the last read of a drained connection, whichever
// is earlier. The caller holds mu.
func (c *conn) limitRead() {
	if c.ended != nil {
		return // the connection is no longer read
	}
	var until time.Time
	if c.draining && len(c.streams) == 0 {
		until = c.quiet.Add(goAwayTime)
	}
	if end := c.unended.Add(blockTime); !c.unended.IsZero() && (until.IsZero() || end.Before(until)) {
		until = end
	}
	c.until, c.lullAt = until, time.Time{}
	_ = c.net.SetReadDeadline(until)
}

// onLull ends the idle goroutines that were not needed since its last call.
func (c *conn) onLull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	needed := max(0, c.busiest-c.working)
	c.lull, c.busiest = nil, c.working
	if c.dismiss(len(c.spare) - needed); len(c.spare) > 0 {
		c.lull = time.AfterFunc(lullTime, c.onLull)
	}
}

// dismiss ends n idle goroutines.
func (c *conn) dismiss(n int) {
	for range n {
		last := len(c.spare) - 1
		c.spare[last] <- nil
		c.spare = c.spare[:last]
		c.kept--
		c.stacks.Shrink(stackCost)
	}
}

// keep reports whether one more idle goroutine may be kept, and claims its memory.
func (c *conn) keep() bool {
	if c.ended != nil {
		return false
	}
	if len(c.spare) == c.kept {
		if !c.stacks.Grow(stackCost) {
			return false
		}
		c.kept++
	}
	return true
}

// frameBuffers hold the payloads of frames.
var frameBuffers = buffers.NewPool(h2.FrameMax)
