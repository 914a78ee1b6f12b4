package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/api"
)

// soakerVariable makes this binary run as one hostile client of [TestSoakOfHostileClients].
const soakerVariable = "BOXGATE_SOAKER"

// hostile is one hostile client: a stranger, a weak key or a box. It is a separate process in the network namespace
// that it attacks from.
type hostile struct {
	Name  string         // in the report
	Kind  string         // of [soakerKinds]
	Rate  float64        // attempts a second
	Most  int            // connections kept open
	From  netip.Addr     // address of a stranger
	To    netip.AddrPort // the public URLs, or a host on the internet
	Host  string         // of a public URL, or on the internet
	Key   string
	Box   string
	Other netip.AddrPort // a box's DNS server
}

// soaker is a hostile client in its own process.
type soaker struct {
	hostile
	client *api.Client
	open   kept
	tally  soakTally
}

// soakTally counts the results of a soaker's attempts.
type soakTally struct {
	Tried, Done, Refused, Failed atomic.Int64
	first                        sync.Once
	problem                      atomic.Value // the first failure
}

// soakResult is the tally reported by the process of a soaker.
type soakResult struct {
	Tried, Done, Refused, Failed int64
	Problem                      string
}

// soakerKinds are the actions of hostile clients, attempt by attempt. An error means that the attempt failed;
// errRefused is the expected refusal of the gateway.
var soakerKinds = map[string]func(s *soaker, i int) error{
	"spin":              (*soaker).spin,
	"holds connections": (*soaker).holdVisit,
	"resets":            (*soaker).resetVisit,
	"slow requests":     (*soaker).slowVisit,
	"wrong credentials": (*soaker).wrongVisit,
	"read-only":         (*soaker).idleAndBodies,
	"one-box":           (*soaker).commands,
	"URLs":              (*soaker).urls,
	"snapshots":         (*soaker).snapshots,
	"floods":            (*soaker).floods,
	"denied and hoards": (*soaker).deniedAndHoards,
}

var errRefused = errors.New("refused")

// soakersAtOnce bounds the concurrent attempts of one client.
const soakersAtOnce = 256

// runSoaker is the process of a hostile client. Its standard input has its configuration in JSON, and ends when the
// process must exit.
func runSoaker() error {
	in := bufio.NewReader(os.Stdin)
	var s soaker
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.hostile)
	}
	if err != nil {
		return err
	}
	s.client = api.NewClient("http://"+adminAddress, s.Key)
	s.open.most = s.Most
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		end()
	}()
	s.attack(ctx, soakerKinds[s.Kind])
	r := soakResult{Tried: s.tally.Tried.Load(), Done: s.tally.Done.Load(), Refused: s.tally.Refused.Load(), Failed: s.tally.Failed.Load()}
	r.Problem, _ = s.tally.problem.Load().(string)
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// attack makes attempts at the rate of the soaker until ctx ends. It skips an attempt while soakersAtOnce are running.
func (s *soaker) attack(ctx context.Context, attempt func(*soaker, int) error) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / s.Rate))
	defer tick.Stop()
	places := make(chan struct{}, soakersAtOnce)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case places <- struct{}{}:
		default:
			continue
		}
		s.tally.Tried.Add(1)
		go func() {
			defer func() { <-places }()
			s.tally.count(attempt(s, i))
		}()
	}
}

// count classifies the result of an attempt. A 429 is a refusal because quotas cause it.
func (t *soakTally) count(err error) {
	refusal := (*api.ResponseError)(nil)
	switch {
	case err == nil:
		t.Done.Add(1)
	case errors.Is(err, errRefused), errors.As(err, &refusal) && refusal.Status == http.StatusTooManyRequests:
		t.Refused.Add(1)
	default:
		t.Failed.Add(1)
		t.first.Do(func() { t.problem.Store(err.Error()) })
	}
}

// kept holds the latest connections open.
type kept struct {
	mu    sync.Mutex
	most  int
	conns []net.Conn
}

func (k *kept) add(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.conns) >= k.most {
		_ = k.conns[0].Close()
		k.conns = k.conns[1:]
	}
	k.conns = append(k.conns, c)
}

// spin uses CPU time without calling the gateway.
func (s *soaker) spin(int) error {
	for began := time.Now(); time.Since(began) < time.Second; {
	}
	return nil
}

// visit connects to a public URL by TLS.
func (s *soaker) visit() (*tls.Conn, *net.TCPConn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.From, 0))}
	c, err := d.Dial("tcp", s.To.String())
	if err != nil {
		return nil, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	v := tls.Client(c, &tls.Config{ServerName: s.Host, InsecureSkipVerify: true})
	if err := v.Handshake(); err != nil {
		_ = c.Close()
		return nil, nil, fmt.Errorf("%w: %w", errRefused, err) // its address has the maximum number of connections
	}
	return v, c.(*net.TCPConn), nil
}

func (s *soaker) holdVisit(int) error {
	v, _, err := s.visit()
	if err == nil {
		s.open.add(v)
	}
	return err
}

func (s *soaker) resetVisit(int) error {
	v, tcp, err := s.visit()
	if err != nil {
		return err
	}
	_, _ = io.WriteString(v, "x")
	_, _ = v.Read(make([]byte, 1)) // until the port has answered
	resetNow(tcp)
	return nil
}

// slowVisit sends a request byte by byte, until the gateway ends it.
func (s *soaker) slowVisit(int) error {
	v, _, err := s.visit()
	if err != nil {
		return err
	}
	defer v.Close()
	_, err = fmt.Fprintf(v, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\nX-Slow: ", s.Host)
	for range 18 {
		if err != nil {
			return nil //nolint:nilerr // ended by the gateway
		}
		time.Sleep(time.Second)
		_, err = io.WriteString(v, "s")
	}
	return nil
}

func (s *soaker) wrongVisit(i int) error {
	v, _, err := s.visit()
	if err != nil {
		return err
	}
	defer v.Close()
	if _, err := fmt.Fprintf(v, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer wrong-%d\r\nConnection: close\r\n\r\n", s.Host, i); err != nil {
		return err
	}
	return wantStatus(v, http.StatusUnauthorized)
}

// wantStatus reads the head of a response. 403, 429 and the end of the connection count as refusals.
func wantStatus(c io.Reader, want int) error {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err) // the connection was closed in favour of another
	}
	switch res.StatusCode {
	case want:
		return nil
	case http.StatusForbidden, http.StatusTooManyRequests:
		return errRefused
	}
	return fmt.Errorf("answer %s, want %d", res.Status, want)
}

// request sends a request with the key on a new connection. Only sent of the announced length bytes of the body follow.
func (s *soaker) request(method, path string, length int, sent string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", adminAddress, 10*time.Second)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Box-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, s.Key, length, sent)
	return c, nil
}

var unfinished = strings.Repeat(" ", 256<<10)

// idleAndBodies opens a connection that is used once and kept open, or sends an endless body.
func (s *soaker) idleAndBodies(i int) error {
	if i%2 == 0 {
		c, err := s.request("POST", api.BoxPath(s.Box, "egress", "explain"), 8<<20, unfinished)
		if err == nil {
			s.open.add(c)
		}
		return err
	}
	c, err := s.request("GET", "/v2/box", 0, "")
	if err != nil {
		return err
	}
	s.open.add(c)
	return wantStatus(c, http.StatusOK)
}

// commands starts a command that ends immediately, or one that does not end and whose output is never read.
func (s *soaker) commands(i int) error {
	if i%4 == 0 {
		return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "exec"), map[string]any{"command": []string{"true"}}, nil)
	}
	body := `{"command":["sleep","3600"]}`
	c, err := s.request("POST", api.BoxPath(s.Box, "exec-stream"), len(body), body)
	if err != nil {
		return err
	}
	s.open.add(c)
	return wantStatus(c, http.StatusOK)
}

// urls creates a public URL for another port.
func (s *soaker) urls(i int) error {
	return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "preview"), map[string]any{"port": 1024 + i%60_000}, nil)
}

// snapshots takes a snapshot, or deletes all snapshots.
func (s *soaker) snapshots(i int) error {
	if i%8 == 7 {
		return s.client.Do(context.Background(), "DELETE", "/v2/box/snapshots", map[string]any{}, nil)
	}
	return s.client.Do(context.Background(), "POST", api.BoxPath(s.Box, "snapshots"), map[string]any{}, nil)
}

// floods sends eight DNS queries, and opens a connection that begins a handshake and stops.
func (s *soaker) floods(i int) error {
	for n := range 8 {
		if err := s.query(fmt.Sprintf("q%d-%d.example.com.", i, n)); err != nil {
			return err
		}
	}
	return s.hoard(s.To.Port(), func(c net.Conn) error { _, err := c.Write(endless); return err })
}

// hoard opens a connection to a port of the host and keeps it open.
func (s *soaker) hoard(port uint16, begin func(net.Conn) error) error {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.To.Addr(), port).String(), 10*time.Second)
	if err != nil {
		return errRefused
	}
	s.open.add(c)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if begin(c) != nil {
		return errRefused // a reset
	}
	return nil
}

var endless = endlessHello()

// query sends one DNS query without waiting for the answer.
func (s *soaker) query(name string) error {
	c, err := net.Dial("udp", s.Other.String())
	if err != nil {
		return err
	}
	defer c.Close()
	q, err := new(mdns.Msg).SetQuestion(name, mdns.TypeA).Pack()
	if err == nil {
		_, err = c.Write(q)
	}
	return err
}

// deniedAndHoards makes a request with a long path that is denied, or makes the gateway hold memory with an endless
// request head or an unread answer.
func (s *soaker) deniedAndHoards(i int) error {
	switch i % 20 {
	case 0:
		return s.hoard(80, func(c net.Conn) error {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+s.Host+"\r\nX: "+strings.Repeat("x", 60<<10))
			return err
		})
	case 10:
		return s.hoard(s.To.Port(), func(c net.Conn) error {
			v := tls.Client(c, &tls.Config{ServerName: s.Host, InsecureSkipVerify: true})
			_, err := fmt.Fprintf(v, "GET /bytes/50000000 HTTP/1.1\r\nHost: %s\r\n\r\n", s.Host)
			return err
		})
	}
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.To.Addr(), 80).String(), 10*time.Second)
	if err != nil {
		return errRefused
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(c, "GET /%d/%s HTTP/1.1\r\nHost: evil.example.net\r\nConnection: close\r\n\r\n", i, longPath)
	return wantStatus(c, http.StatusOK)
}

var longPath = strings.Repeat("long/", 800)
