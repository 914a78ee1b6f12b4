package dns

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"

	"boxgate/dns/outbound"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// maxRounds is how often a lookup tries every upstream before it fails.
const maxRounds = 2

// rcodeError is an upstream's response code when it cannot answer: SERVFAIL, REFUSED and the like.
type rcodeError int

func (e rcodeError) Error() string { return "upstream answered " + mdns.RcodeToString[int(e)] }

// forwarder asks the upstream servers in order, except that recently failed ones come last.
type forwarder struct {
	upstreams []*upstream
	counts    *counts
	log       *zap.Logger
	zone      *Zone      // asked at inZone; nil: there is none
	inZone    *forwarder // nil without zone
}

// all returns the upstreams, including the zone's.
func (f *forwarder) all() []*upstream {
	if f.inZone == nil {
		return f.upstreams
	}
	return slices.Concat(f.upstreams, f.inZone.upstreams)
}

func newForwarder(c Config) (*forwarder, error) {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	servers := c.Upstreams
	if c.Cluster != nil {
		servers = slices.Concat(servers, c.Cluster.Upstreams)
	}
	counts := newCounts(servers)
	f, err := forwarderTo(c, c.Upstreams, counts, dial)
	if err != nil || c.Cluster == nil {
		return f, err
	}
	f.zone = c.Cluster
	f.inZone, err = forwarderTo(c, c.Cluster.Upstreams, counts, dial)
	return f, err
}

// forwarderTo returns a forwarder to some servers.
func forwarderTo(c Config, servers []string, counts *counts, dial Dial) (*forwarder, error) {
	f := &forwarder{log: c.Log, counts: counts}
	for _, s := range servers {
		u, err := newUpstream(s, dial, c.Roots)
		if err != nil {
			return nil, err
		}
		if c.Dial != nil {
			u.directAddr = netip.AddrPort{}
		}
		f.upstreams = append(f.upstreams, u)
	}
	return f, nil
}

// directUpstream returns the upstream to ask first, if it can be asked over UDP without exchange, or nil.
func (f *forwarder) directUpstream() *upstream {
	for _, u := range f.upstreams {
		if u.isHeldDown() {
			continue
		}
		if u.directAddr.IsValid() {
			return u
		}
		break
	}
	return nil
}

// attempt is a failed attempt of a reader. The zero value is no attempt.
type attempt struct {
	upstream *upstream
	sent     time.Time
	err      error
}

// exchange implements exchanger. It tries each upstream, then each once more if any did not answer at all.
func (f *forwarder) exchange(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	return f.exchangeAfter(ctx, name, qtype, attempt{})
}

// exchangeAfter is exchange after a first attempt of the reader.
func (f *forwarder) exchangeAfter(ctx context.Context, name string, qtype uint16, first attempt) (*mdns.Msg, error) {
	if f.zone != nil && f.zone.hasText(name) {
		return f.inZone.exchangeAfter(ctx, name, qtype, first)
	}
	var errs []error
	for range maxRounds {
		silent := false
		for _, u := range f.inOrder(first.upstream) {
			a := attempt{upstream: u, sent: time.Now()}
			if u == first.upstream {
				a, first = first, attempt{}
			}
			m, err := u.exchange(ctx, name, qtype, a.err)
			if ctx.Err() == nil || err == nil { // otherwise the caller has given up
				f.countResult(u, a.sent, err)
			}
			if err == nil {
				u.markAnswered()
				return m, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", u.name, err))
			if _, failed := errors.AsType[rcodeError](err); failed {
				u.markAnswered()
			} else {
				silent = true
				f.markFailed(u, a.sent, err)
			}
			if ctx.Err() != nil {
				return nil, errors.Join(errs...)
			}
		}
		if !silent {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// countResult counts one question to u.
func (f *forwarder) countResult(u *upstream, sent time.Time, err error) {
	result := resultAnswered
	if _, refused := errors.AsType[rcodeError](err); refused {
		result = resultRefused
	} else if err != nil {
		result = resultSilent
	}
	f.counts.observe(u.name, result, time.Since(sent))
}

// markFailed skips u for a while if it does not answer at all, and logs that once.
func (f *forwarder) markFailed(u *upstream, sent time.Time, err error) {
	if u.markFailed(sent) {
		f.log.Warn("upstream DNS server does not answer; skipping it for a while",
			zap.String("upstream", u.name), zap.Duration("for", holdDown), zap.Error(err))
	}
}

// inOrder returns the upstreams in configured order, except that recently failed ones come last. If first is not nil, it
// comes first.
func (f *forwarder) inOrder(first *upstream) []*upstream {
	var good, held []*upstream
	if first != nil {
		good = append(good, first)
	}
	for _, u := range f.upstreams {
		if u == first {
			continue
		}
		if u.isHeldDown() {
			held = append(held, u)
		} else {
			good = append(good, u)
		}
	}
	return append(good, held...)
}

const (
	// tryTimeout bounds one attempt at one upstream.
	tryTimeout = 1500 * time.Millisecond
	// holdDown is how long an upstream that did not answer comes after the others.
	holdDown = 30 * time.Second
)

// errUseStream means that the question must be asked again over a stream.
var errUseStream = outbound.ErrSuspect

// upstream is one upstream DNS server.
type upstream struct {
	name       string // as configured
	addr       string
	dial       Dial
	tls        *tls.Config    // nil: UDP, and TCP as needed
	idle       idleConns      // TLS connections kept for reuse
	directAddr netip.AddrPort // for questions sent without dial; zero: not possible
	timeout    time.Duration  // bounds one attempt; tryTimeout
	created    time.Time
	heldUntil  atomic.Int64 // nanoseconds since created, so that clock changes do not matter
	lastAnswer atomic.Int64 // last answer of any kind, likewise in nanoseconds since created
}

// newUpstream reads one entry of Config.Upstreams.
func newUpstream(s string, dial Dial, roots *x509.CertPool) (*upstream, error) {
	u := &upstream{name: s, dial: dial, timeout: tryTimeout, created: time.Now()}
	addr, secure := strings.CutPrefix(s, "tls://")
	addr, serverName, named := strings.Cut(addr, "#")
	port := "53"
	if secure {
		port = "853"
	}
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		host, p = strings.Trim(addr, "[]"), port
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/[] ") || named && !secure {
		return nil, fmt.Errorf("dns: upstream %q is not an address, host:port or tls://host:port", s)
	}
	u.addr = net.JoinHostPort(host, p)
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" && !secure {
		u.directAddr = netip.AddrPortFrom(a, uint16(n))
	}
	if secure {
		if serverName == "" {
			serverName = host
		}
		u.tls = &tls.Config{ServerName: serverName, RootCAs: roots, Time: fault.Now, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	}
	return u, nil
}

func (u *upstream) isHeldDown() bool { return int64(time.Since(u.created)) < u.heldUntil.Load() }

// markFailed holds u down after a question without an answer, and reports whether it was up. If u has answered another
// question since this one was sent, u stays up: only this question has no answer.
func (u *upstream) markFailed(sent time.Time) bool {
	if u.lastAnswer.Load() > int64(sent.Sub(u.created)) {
		return false
	}
	now := time.Since(u.created)
	return u.heldUntil.Swap(int64(now+holdDown)) < int64(now)
}

// markAnswered records that u has answered, with any result.
func (u *upstream) markAnswered() {
	u.lastAnswer.Store(int64(time.Since(u.created)))
	if u.heldUntil.Load() != 0 {
		u.heldUntil.Store(0)
	}
}

// exchange asks once, over UDP with a fallback to a stream, or over TLS. before is the error of an earlier attempt over
// UDP, or nil.
func (u *upstream) exchange(ctx context.Context, name string, qtype uint16, before error) (*mdns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	m, err := (*mdns.Msg)(nil), before
	if err == nil && u.tls == nil {
		m, err = u.overUDP(ctx, name, qtype)
	}
	if errors.Is(err, errUseStream) {
		u.markAnswered()
	}
	if u.tls != nil || errors.Is(err, errUseStream) {
		m, err = u.overStream(ctx, name, qtype)
	}
	if err != nil {
		return nil, err
	}
	if m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError {
		return nil, rcodeError(m.Rcode)
	}
	return m, nil
}

// overUDP asks from a new socket: an off-path forger must guess a port that the kernel picks at random, a random ID and
// random letter case (RFC 5452). Datagrams that do not match are ignored until the deadline.
func (u *upstream) overUDP(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	q := question(mixCase(name), qtype)
	wire, err := q.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := u.dial(ctx, "udp", u.addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer interrupt(ctx, conn)()
	if _, err := conn.Write(wire); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		m := new(mdns.Msg)
		if n < headerSize || buf[0] != wire[0] || buf[1] != wire[1] || buf[2]&0x80 == 0 {
			continue
		}
		// The ID is right. If anything else is wrong, the server folds case or the answer is forged: ask again over a
		// stream.
		if m.Unpack(buf[:n]) != nil || m.Truncated || !isAnswerTo(m, q) {
			return nil, errUseStream
		}
		return m, nil
	}
}

// interrupt makes reads and writes on conn fail when ctx ends. Call the returned function when done.
func interrupt(ctx context.Context, conn net.Conn) (stop func()) {
	cancel := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return func() { cancel() }
}

// question is a query to upstream: recursion desired, EDNS for larger answers, no DNSSEC records.
func question(name string, qtype uint16) *mdns.Msg {
	q := new(mdns.Msg).SetQuestion(name, qtype)
	return q.SetEdns0(udpSize, false)
}

// isAnswerTo reports whether m is the answer to q: ID and question are identical, including letter case. Servers that
// fail before they parse the question may omit it.
func isAnswerTo(m, q *mdns.Msg) bool {
	if m.Id != q.Id || !m.Response || m.Opcode != mdns.OpcodeQuery {
		return false
	}
	if len(m.Question) == 0 {
		return m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError
	}
	return len(m.Question) == 1 && m.Question[0] == q.Question[0]
}

// mixCase gives each letter of a lower-case name a random case (draft-vixie-dnsext-dns0x20).
func mixCase(name string) string {
	mixed := []byte(name)
	coins := make([]byte, len(mixed))
	rand.Read(coins) // never fails
	for i, c := range mixed {
		if 'a' <= c && c <= 'z' && coins[i]&1 == 1 {
			mixed[i] = c - 'a' + 'A'
		}
	}
	return string(mixed)
}

const (
	maxIdleConns = 8
	maxIdleTime  = 8 * time.Second
)

// errMismatch is returned if the answer on a stream does not match the question.
var errMismatch = errors.New("upstream answered another question")

// overStream asks over TCP or TLS. If a kept connection turns out dead, it tries once more on a new one.
func (u *upstream) overStream(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	q := question(name, qtype)
	if conn := u.idle.popConn(); conn != nil {
		if m, err := u.askStream(ctx, conn, q); err == nil || ctx.Err() != nil {
			return m, err
		}
	}
	conn, err := u.connect(ctx)
	if err != nil {
		return nil, err
	}
	return u.askStream(ctx, conn, q)
}

func (u *upstream) connect(ctx context.Context) (net.Conn, error) {
	conn, err := u.dial(ctx, "tcp", u.addr)
	if err != nil || u.tls == nil {
		return conn, err
	}
	secure := tls.Client(conn, u.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// askStream sends q on conn and reads the answer. It keeps conn for reuse if possible, else closes it.
func (u *upstream) askStream(ctx context.Context, conn net.Conn, q *mdns.Msg) (*mdns.Msg, error) {
	m, err := roundTrip(ctx, conn, q)
	if err != nil || u.tls == nil || ctx.Err() != nil {
		conn.Close()
	} else {
		u.idle.pushConn(conn)
	}
	return m, err
}

func roundTrip(ctx context.Context, conn net.Conn, q *mdns.Msg) (*mdns.Msg, error) {
	defer interrupt(ctx, conn)()
	wire, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if err := writeMessage(conn, wire); err != nil {
		return nil, err
	}
	wire, err = readMessage(conn, mdns.MaxMsgSize)
	if err != nil {
		return nil, err
	}
	m := new(mdns.Msg)
	if err := m.Unpack(wire); err != nil {
		return nil, fmt.Errorf("malformed answer: %w", err)
	}
	if !isAnswerTo(m, q) || m.Truncated {
		return nil, errMismatch
	}
	return m, nil
}

// errMessageSize is returned for a length prefix beyond the reader's limit.
var errMessageSize = errors.New("DNS message is too long")

// readMessage reads one length-prefixed message (RFC 1035, section 4.2.2).
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errMessageSize
	}
	wire := make([]byte, n)
	if _, err := io.ReadFull(r, wire); err != nil {
		return nil, err
	}
	return wire, nil
}

// writeMessage writes length and message in one segment (RFC 7766, section 8).
func writeMessage(w io.Writer, wire []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, len(wire)+2), uint16(len(wire))), wire...))
	return err
}

// idleConns keeps connections for reuse, the most recent first. The zero value is ready.
type idleConns struct {
	mu    sync.Mutex
	conns []idleConn // oldest first
}

type idleConn struct {
	net.Conn
	since time.Time
}

func (i *idleConns) popConn() net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expireLocked()
	if len(i.conns) == 0 {
		return nil
	}
	last := i.conns[len(i.conns)-1]
	i.conns = i.conns[:len(i.conns)-1]
	return last.Conn
}

func (i *idleConns) pushConn(conn net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expireLocked()
	if len(i.conns) == maxIdleConns {
		conn.Close()
		return
	}
	i.conns = append(i.conns, idleConn{conn, time.Now()})
}

func (i *idleConns) expireLocked() {
	for len(i.conns) > 0 && time.Since(i.conns[0].since) > maxIdleTime {
		i.conns[0].Close()
		i.conns = i.conns[1:]
	}
}

const (
	// maxOpenQuestions bounds the open questions of one reader. Further queries take the general path.
	maxOpenQuestions = 512
	// sweepInterval is how often a reader looks for questions that have timed out.
	sweepInterval = 50 * time.Millisecond
	// socketIdleTime is how long a reader keeps its sockets when no question is open.
	socketIdleTime = time.Second
	// prepareInterval is how long a reader waits after it failed to open sockets before it tries again.
	prepareInterval = time.Second
)

// errReaderStopped ends the questions of a reader that stops or closes its idle sockets.
var errReaderStopped = errors.New("the reader stops")

// openQuestions holds the questions that a reader itself has sent upstream. A query that needs a single answer over UDP
// then takes no goroutine: once the answer is in the cache, the query is answered directly. All other queries take the
// general path.
type openQuestions struct {
	sockets   *outbound.Sockets[lookup] // nil: closed while idle
	byKey     map[cacheKey]*outbound.Question[lookup]
	lastSweep time.Time
	lastOpen  time.Time // when a question was open last
}

// lookup is the purpose of one question.
type lookup struct {
	key     cacheKey
	server  *upstream
	flight  *flight
	usage   *usage // of the box that is charged for it
	queries []pendingQuery
}

// askUpstream makes the query w wait for the answer that it misses, and asks upstream for it. It reports false if the
// query has to take the general path.
func (r *reader) askUpstream(w pendingQuery, missing cacheKey) bool {
	if missing.name.IsZero() || r.up == nil || r.cluster.has(missing.name) {
		return false
	}
	if q := r.questions.byKey[missing]; q != nil {
		q.For.queries = append(q.For.queries, w)
		return true
	}
	server := r.up.directUpstream()
	if server == nil || !r.openSockets(w.now) || !r.cache.acquireSlot(w.usage) {
		return false
	}
	l := lookup{key: missing, server: server, usage: w.usage}
	if l.flight = r.cache.startFlight(missing); l.flight == nil {
		r.cache.releaseSlot(w.usage)
		return false
	}
	q, err := r.questions.sockets.Ask(server.directAddr, missing.name.String(), missing.qtype, w.now)
	if err != nil {
		r.endLookup(l, nil)
		return false
	}
	l.queries = append(l.queries, w)
	q.For = l
	r.questions.byKey[missing] = q
	return true
}

// openSockets opens the sockets for asking upstream. After a failure it waits for prepareInterval, so that not every
// query tries again.
func (r *reader) openSockets(now time.Time) bool {
	if r.questions.sockets != nil {
		return true
	}
	if now.Before(r.retryOpen) {
		return false
	}
	sockets, err := outbound.New[lookup](maxOpenQuestions, r.budget, r.socket.fd)
	if err != nil {
		r.retryOpen = now.Add(prepareInterval)
		r.log.Warn("cannot ask upstream from the reader of a DNS socket", zap.Error(err))
		return false
	}
	r.questions = openQuestions{sockets: sockets, byKey: map[cacheKey]*outbound.Question[lookup]{}, lastSweep: now, lastOpen: now}
	return true
}

// awaitAnswer waits until an answer arrives or the socket is readable, and reports whether the socket is readable.
func (r *reader) awaitAnswer(ctx context.Context) (readable bool, err error) {
	readable, err = r.questions.sockets.Wait(sweepInterval, func(q *outbound.Question[lookup], message []byte, err error) {
		r.endQuestion(ctx, q, message, err)
	})
	r.expireQuestions(ctx, time.Now())
	return readable && err == nil, err
}

// expireQuestions ends the questions that have timed out, and closes the sockets when they are no longer needed.
func (r *reader) expireQuestions(ctx context.Context, now time.Time) {
	if now.Sub(r.questions.lastSweep) < sweepInterval {
		return
	}
	r.questions.lastSweep = now
	r.questions.sockets.Each(func(q *outbound.Question[lookup]) {
		r.questions.lastOpen = now
		if now.Sub(q.Sent) >= q.For.server.timeout {
			r.endQuestion(ctx, q, nil, context.DeadlineExceeded)
		}
	})
	if now.Sub(r.questions.lastOpen) >= socketIdleTime {
		r.closeSockets(ctx)
	}
}

// closeSockets closes the sockets. Waiting queries take the general path.
func (r *reader) closeSockets(ctx context.Context) {
	if r.questions.sockets == nil {
		return
	}
	r.questions.sockets.Each(func(q *outbound.Question[lookup]) { r.endQuestion(ctx, q, nil, errReaderStopped) })
	_ = r.questions.sockets.Close()
	r.questions = openQuestions{}
}

// endQuestion ends a question with an answer or an error, and answers the queries that wait for it. All of them get this
// result, even if it may not be cached, and do not ask upstream again.
func (r *reader) endQuestion(ctx context.Context, q *outbound.Question[lookup], message []byte, err error) {
	l, sent := q.For, q.Sent
	r.questions.sockets.End(q)
	delete(r.questions.byKey, l.key)
	var a *answer
	if err == nil {
		l.server.markAnswered()
		if a, err = cacheableAnswer(message, l.key); err == nil {
			r.up.countResult(l.server, sent, nil)
		}
	}
	if err == nil && a.life > 0 {
		r.cache.storeAnswer(l.key, a, len(message))
		r.endLookup(l, a)
		r.answerCached(ctx, l.queries)
		return
	}
	f, _ := r.cache.joinFlight(l.key) // this is l.flight
	for _, w := range l.queries {
		r.answerBeforeDeadline(withFlight(ctx, l.key, f), w)
	}
	switch {
	case err == nil:
		r.endLookup(l, a)
	case errors.Is(err, errReaderStopped):
		r.endLookup(l, nil)
	default:
		go r.resumeLookup(l, attempt{upstream: l.server, sent: sent, err: err})
	}
}

// cacheableAnswer returns the answer to cache, or an error after which the lookup tries something else.
func cacheableAnswer(message []byte, k cacheKey) (*answer, error) {
	a, err := digestMessage(message, k, time.Now())
	if _, failed := errors.AsType[rcodeError](err); err == nil || failed || errors.Is(err, errUseStream) {
		return a, err
	}
	return failure(err), nil
}

// resumeLookup continues the lookup after the reader's attempt: over a stream, or with the other upstreams.
func (r *reader) resumeLookup(l lookup, first attempt) {
	r.endLookup(l, r.cache.lookupThrough(l.key, first.sent.Add(r.cache.timeout), func(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
		return r.up.exchangeAfter(ctx, name, qtype, first)
	}))
}

// answerCached answers queries whose answer is in the cache.
func (r *reader) answerCached(ctx context.Context, queries []pendingQuery) {
	now := time.Now()
	for _, w := range queries {
		w.now = now
		out, ok := r.answerDirectly(ctx, w.visit, policy.UDP, w.wire, &r.scratch, r.batch.replyBuffer())
		if !ok {
			r.answerBeforeDeadline(ctx, w)
			continue
		}
		r.batch.add(out, w.from)
		w.release()
	}
}

// answerBeforeDeadline answers a query on the general path, within the rest of its lookup timeout.
func (r *reader) answerBeforeDeadline(ctx context.Context, w pendingQuery) {
	ctx, cancel := context.WithDeadline(ctx, w.arrived.Add(r.cache.timeout))
	w.done = cancel
	r.answerInBackground(ctx, w)
}

// endLookup ends the flight of a finished lookup.
func (r *reader) endLookup(l lookup, a *answer) {
	r.cache.endFlight(l.key, l.flight, a)
	r.cache.releaseSlot(l.usage)
}
