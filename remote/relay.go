package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/recovery"
)

const (
	chunk = 16 << 10 // bytes moved at a time: one TLS record
	// relayCost is the memory of a relay in bytes: two buffers, the buffers of TLS, and the stacks of its goroutines.
	relayCost = 80 << 10
	// stuckTime is how long a client may pause reading after the proxy has ended a connection, and quietTime how long it may pause
	// sending then.
	stuckTime = 5 * time.Minute
	quietTime = time.Minute
	// sweepTime is the interval of sweeps. The timer of a token stands still while the host is suspended, and does not follow a clock
	// that is set.
	sweepTime = time.Second
)

// relays are the connections with a token, by box.
type relays struct {
	cfg Config
	now func() time.Time // the wall clock

	mu      sync.Mutex
	n       int
	boxes   map[policy.BoxID]*account
	closing bool // connections end when the proxy has ended them
}

// account counts the connections and bytes of one box.
type account struct {
	open          map[*relay]struct{} // guarded by relays.mu
	in, out       atomic.Uint64
	receive, send *rate.Limiter
}

// relay is one connection of a client to the proxy.
type relay struct {
	relays  *relays
	account *account
	box     *policy.Box
	raw     net.Conn
	client  *tls.Conn
	pair    *net.TCPConn // its other end is at the proxy; nil before connect; set by the handler under relays.mu
	ctx     context.Context
	stop    context.CancelFunc
	expires time.Time    // end of the token
	expiry  *time.Timer  // fires then, unless the host is suspended or its clock is set: see hasExpired
	writing atomic.Int64 // when the write to the client in progress began, in Unix seconds; 0: there is no write
	ended   atomic.Bool  // the proxy sends no more
}

// enter takes a place for a connection, and returns nil if all are taken.
func (s *relays) enter(a Access, raw net.Conn, client *tls.Conn) *relay {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.boxes[a.Box.ID]
	if own == nil {
		own = &account{open: map[*relay]struct{}{}, receive: rate.NewLimiter(rate.Inf, 0), send: rate.NewLimiter(rate.Inf, 0)}
	}
	most := a.Box.Limits.Of(policy.LimitConnections, int64(s.cfg.Connections))
	if s.n >= s.cfg.Most || len(own.open) >= max(1, s.cfg.Most/2) || int64(len(own.open)) >= most {
		return nil
	}
	r := &relay{relays: s, account: own, box: a.Box, raw: raw, client: client, expires: a.Expires.Round(0)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.expiry = time.AfterFunc(time.Until(a.Expires), r.close)
	own.open[r] = struct{}{}
	s.boxes[a.Box.ID] = own
	s.n++
	return r
}

// leave closes the connection and frees its place.
func (r *relay) leave() {
	r.expiry.Stop()
	r.close()
	s := r.relays
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := r.account.open[r]; open {
		delete(r.account.open, r)
		s.n--
	}
	if unused := r.account.in.Load()+r.account.out.Load() == 0; unused && len(r.account.open) == 0 && s.boxes[r.box.ID] == r.account {
		delete(s.boxes, r.box.ID) // its box may have been deleted before the connection entered
	}
}

// close closes both connections. The handler then ends.
func (r *relay) close() {
	r.stop()
	_ = r.raw.Close()
	r.relays.mu.Lock()
	pair := r.pair
	r.relays.mu.Unlock()
	if pair != nil {
		_ = pair.Close()
	}
}

// connect opens the connection to the proxy.
func (r *relay) connect() error {
	ours, theirs, err := socket.Pair(r.ctx)
	if err != nil {
		return err
	}
	r.relays.mu.Lock()
	r.pair = ours
	r.relays.mu.Unlock()
	if r.ctx.Err() != nil { // closed meanwhile
		_ = theirs.Close()
		return r.ctx.Err()
	}
	r.relays.cfg.Proxy.ServeRelayed(r.box, theirs, relayCost)
	return nil
}

// run moves bytes in both directions until both have ended or one has failed. from has the bytes of the client, answers the
// bytes of the proxy.
func (r *relay) run(from, answers io.Reader) {
	var sending sync.WaitGroup
	sending.Go(func() {
		defer recovery.Panic(r.relays.cfg.Log, r.box.ID, r.close)
		if !r.move(r.pair, from, &r.account.out, r.account.send, policy.LimitSend, r.relays.cfg.Send) || r.pair.CloseWrite() != nil {
			r.close()
		}
	})
	if !r.move(timedWriter{r}, answers, &r.account.in, r.account.receive, policy.LimitReceive, r.relays.cfg.Receive) || r.client.CloseWrite() != nil {
		r.close()
	}
	r.ended.Store(true)
	if r.relays.isClosing() {
		r.close()
	}
	_ = r.raw.SetReadDeadline(time.Now().Add(quietTime))
	sending.Wait()
}

// move copies until from ends, within the box's limit. It returns false after an error.
func (r *relay) move(to io.Writer, from io.Reader, count *atomic.Uint64, limiter *rate.Limiter, limit policy.Limit, all int64) bool {
	buf := make([]byte, chunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if r.hasExpired(r.relays.now()) {
				return false
			}
			count.Add(uint64(n))
			if r.await(limiter, r.box.Limits.Of(limit, all), n) != nil {
				return false
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return false
			}
		}
		if err != nil {
			return err == io.EOF
		}
		if r.ended.Load() {
			_ = r.raw.SetReadDeadline(time.Now().Add(quietTime))
		}
	}
}

// hasExpired reports whether the token has expired by the wall clock. Each read asks, so that nothing passes after a suspension or a step
// of the clock, even before the next sweep.
func (r *relay) hasExpired(now time.Time) bool { return !now.Before(r.expires) }

// await waits until n bytes may pass at most bytes a second.
func (r *relay) await(limiter *rate.Limiter, most int64, n int) error {
	if most <= 0 {
		return nil
	}
	if limiter.Limit() != rate.Limit(most) {
		limiter.SetBurst(int(max(most/10, chunk)))
		limiter.SetLimit(rate.Limit(most))
	}
	return limiter.WaitN(r.ctx, n)
}

// timedWriter writes to the client and notes since when.
type timedWriter struct{ *relay }

// Write implements io.Writer.
func (w timedWriter) Write(p []byte) (int, error) {
	w.writing.Store(time.Now().Unix())
	defer w.writing.Store(0)
	return w.client.Write(p)
}

// isStuck reports whether the proxy has ended the connection and the client does not read its last bytes.
func (r *relay) isStuck(now time.Time) bool {
	since := r.writing.Load()
	if since == 0 || now.Unix()-since < int64(stuckTime/time.Second) {
		return false
	}
	r.relays.mu.Lock()
	pair := r.pair
	r.relays.mu.Unlock()
	return pair == nil || socket.State(pair) != unix.BPF_TCP_ESTABLISHED
}

// sweepRegularly closes stuck connections, and those whose token has expired, until stop is called.
func (s *relays) sweepRegularly() (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(sweepTime)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s.sweep(s.now())
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// sweep closes stuck connections, and those whose token has expired by the wall clock.
func (s *relays) sweep(now time.Time) {
	for _, r := range s.all("") {
		if r.isStuck(now) || r.hasExpired(now) {
			r.close()
		}
	}
}

// all returns the connections of a box, or of all boxes for "".
func (s *relays) all(id policy.BoxID) (list []*relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for box, a := range s.boxes {
		if cmp.Or(id, box) != box {
			continue
		}
		for r := range a.open {
			list = append(list, r)
		}
	}
	return list
}

// cut closes the connections of a box.
func (s *relays) cut(id policy.BoxID) {
	if id == "" {
		return
	}
	for _, r := range s.all(id) {
		r.close()
	}
}

func (s *relays) cutAll() {
	for _, r := range s.all("") {
		r.close()
	}
}

// forget closes the connections of a box that is gone and drops its account. Its token must be invalid already: a connection that enters
// later is refused, and takes its account along (see leave).
func (s *relays) forget(id policy.BoxID) {
	s.mu.Lock()
	var open []*relay
	if own := s.boxes[id]; own != nil {
		open = slices.Collect(maps.Keys(own.open))
	}
	delete(s.boxes, id)
	s.mu.Unlock()
	for _, r := range open {
		r.close()
	}
}

// finish makes connections end as soon as the proxy has ended them.
func (s *relays) finish() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	for _, r := range s.all("") {
		if r.ended.Load() {
			r.close()
		}
	}
}

func (s *relays) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// transferred returns the bytes to and from a box.
func (s *relays) transferred(id policy.BoxID) (in, out uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.boxes[id]
	if a == nil {
		return 0, 0, false
	}
	return a.in.Load(), a.out.Load(), true
}
