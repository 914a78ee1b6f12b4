package dns

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/dns/outbound"
	"boxgate/internal/fault"
)

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
