package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/api"
	"boxgate/bench/proc"
	"boxgate/bench/stat"
)

// patience bounds every connect, handshake and answer.
const patience = 30 * time.Second

// target is a name to connect to.
type target struct {
	host string
	conf *tls.Config
}

// next returns the target of the next connection: the only name, or the next unused one.
func (g *generator) next() target {
	host := g.Name
	if strings.Contains(host, "%") {
		host = fmt.Sprintf(host, g.First+(g.name.Add(1)-1)%max(g.Names, 1))
	}
	if conf, ok := g.sessions.Load(host); ok {
		return target{host, conf.(*tls.Config)}
	}
	conf, _ := g.sessions.LoadOrStore(host, g.tlsConfig(host))
	return target{host, conf.(*tls.Config)}
}

// tlsConfig offers every program the same: X25519 and AES-128-GCM. note checks the certificate. A client cannot see
// whether the program verifies its upstream.
func (g *generator) tlsConfig(host string) *tls.Config {
	c := &tls.Config{
		ServerName: host, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519}, NextProtos: []string{"http/1.1"},
	}
	if g.Kind == HTTP2 || g.Kind == GRPC {
		c.NextProtos = []string{"h2"}
	}
	if g.Resume {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	}
	return c
}

// dial connects, through the explicit proxy if there is one.
func (g *generator) dial(host string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: patience}).DialContext(g.ctx, "tcp", g.Dial)
	if err != nil || !g.Connect {
		return c, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if err = connect(c, net.JoinHostPort(host, "443")); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, c.SetDeadline(time.Time{})
}

// connect asks an explicit proxy for a tunnel. The proxy may send no data after its answer until the client has sent
// some.
func connect(c net.Conn, host string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", host); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // has no body
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || r.Buffered() > 0 {
		return fmt.Errorf("CONNECT: %s, and %d bytes", resp.Status, r.Buffered())
	}
	return nil
}

// open connects and completes the TLS handshake. The connection is closed when the measurement is aborted.
func (g *generator) open(t target) (*tls.Conn, error) {
	raw, err := g.dial(t.host)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, t.conf)
	_ = raw.SetDeadline(time.Now().Add(patience))
	if err := c.HandshakeContext(g.ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS: %w", err), raw.Close())
	}
	if err := g.checkTLS(c.ConnectionState()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, raw.SetDeadline(time.Time{})
}

// reach is open, or dial if Plain is set.
func (g *generator) reach(t target) (net.Conn, error) {
	if g.Plain {
		return g.dial(t.host)
	}
	return g.open(t)
}

// checkTLS records the parameters of the first handshake. It rejects a certificate that is not for the name.
func (g *generator) checkTLS(s tls.ConnectionState) error {
	leaf := s.PeerCertificates[0]
	if err := leaf.VerifyHostname(s.ServerName); err != nil {
		return err
	}
	g.firstTLS.Do(func() {
		g.tlsText = fmt.Sprintf("%s %s %s %s", tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite), s.CurveID, leaf.PublicKeyAlgorithm)
	})
	if g.Resume && g.recording.Load() && !s.DidResume {
		return errors.New("the TLS session was not resumed")
	}
	return nil
}

// ask resolves all names through the box's resolver before the measurement, as a client of the gateway would.
func (g *generator) ask() error {
	if g.Ask == "" {
		return nil
	}
	for i := range max(g.Names, 1) {
		name := g.Name
		if strings.Contains(name, "%") {
			name = fmt.Sprintf(name, g.First+i)
		}
		if err := resolve(g.ctx, g.Ask, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// countingReader counts the bytes of a download.
type countingReader struct {
	r io.Reader
	g *generator
}

func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.g.recordBytes(n)
	return n, err
}

// opening is the number of connections opened concurrently.
const opening = 16

// idle opens connections, sends one request over each, and reads the memory of the program under test at every step
// after a rest.
func (g *generator) idle() (Result, error) {
	var held []net.Conn
	defer func() { closeAbruptly(held) }()
	steps := []Held{}
	for _, goal := range append([]int{0}, g.Steps...) {
		more, err := g.openIdle(goal - len(held))
		held = append(held, more...)
		if err != nil {
			return Result{}, fmt.Errorf("at %d connections: %w", len(held), err)
		}
		g.pause(g.Window)
		bytes, err := proc.Memory(g.PIDs)
		if err != nil {
			return Result{}, err
		}
		steps = append(steps, Held{goal, bytes})
	}
	if err := alive(held); err != nil {
		return Result{}, err
	}
	return Result{Units: int64(len(held)), Seconds: 1, TLS: g.tlsText, Held: steps}, g.ctx.Err()
}

// closeAbruptly closes connections without a TLS close_notify.
func closeAbruptly(conns []net.Conn) {
	for _, c := range conns {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		_ = c.Close()
	}
}

// openIdle opens count more connections.
func (g *generator) openIdle(count int) (held []net.Conn, err error) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	free := make(chan struct{}, opening)
	for range count {
		free <- struct{}{}
		workers.Go(func() {
			c, failure := g.openIdleConn()
			mu.Lock()
			defer mu.Unlock()
			if failure != nil {
				err = failure
			} else {
				held = append(held, c)
			}
			<-free
		})
	}
	workers.Wait()
	return held, err
}

// openIdleConn opens one connection and leaves it idle after one request.
func (g *generator) openIdleConn() (net.Conn, error) {
	t := g.next()
	c, err := g.reach(t)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReaderSize(c, 4096)
	if g.Upgraded {
		err = g.upgrade(c, r, t.host)
	} else {
		err = g.roundTrip(c, r, g.request(t.host))
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, c.SetDeadline(time.Time{})
}

// alive returns an error unless all connections are still open: memory freed by closing connections does not count.
func alive(conns []net.Conn) error {
	closed := slices.IndexFunc(conns, func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Microsecond))
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	})
	if closed >= 0 {
		return fmt.Errorf("connection %d was closed while it was idle", closed)
	}
	return nil
}

// Change is an API call to the gateway that cuts open connections.
type Change struct {
	Socket, Key  string
	Method, Path string
	Body         map[string]any // nil: no body
}

// cut opens connections, makes the change, and measures the time until each connection is cut.
func (g *generator) cut() (Result, error) {
	conns, err := g.openIdle(g.Conns)
	defer func() { closeAbruptly(conns) }()
	if err != nil {
		return Result{}, fmt.Errorf("at %d connections: %w", len(conns), err)
	}
	watch := watchSilent
	if g.Plain {
		watch = g.watchTalking
	}
	ends := make([]time.Time, len(conns))
	var watchers sync.WaitGroup
	var sent atomic.Bool
	for i, c := range conns {
		watchers.Go(func() { ends[i] = watch(c, &sent) })
	}
	g.pause(2 * beat)
	begun := time.Now()
	sent.Store(true)
	if err := g.change(); err != nil {
		return Result{}, err
	}
	watchers.Wait()
	return g.cutResult(begun, ends)
}

func (g *generator) change() error {
	ctx, cancel := context.WithTimeout(g.ctx, patience)
	defer cancel()
	var body any
	if g.Change.Body != nil {
		body = g.Change.Body
	}
	return api.NewClient(g.Change.Socket, g.Change.Key).Do(ctx, g.Change.Method, g.Change.Path, body, nil)
}

func (g *generator) cutResult(begun time.Time, ends []time.Time) (Result, error) {
	var all stat.Histogram
	var last time.Duration
	for i, end := range ends {
		switch {
		case end.IsZero():
			return Result{}, fmt.Errorf("connection %d was not cut", i)
		case !g.Plain && end.Before(begun):
			return Result{}, fmt.Errorf("connection %d ended before the change", i)
		}
		took := max(end.Sub(begun), 0)
		last = max(last, took)
		all.Add(took)
	}
	micros := float64(last) / 1e3
	return Result{
		Units: int64(len(ends)), Seconds: max(last.Seconds(), 1e-9), TLS: g.tlsText, Last: micros,
		P50: float64(all.Quantile(0.5)) / 1e3, P99: float64(all.Quantile(0.99)) / 1e3,
	}, g.ctx.Err()
}

// watchSilent returns the time at which an idle connection ends, or zero if it does not end.
func watchSilent(c net.Conn, _ *atomic.Bool) (end time.Time) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return end
	}
	return time.Now()
}

// beat is the interval of requests over each connection that the kernel forwards. Such a connection is not closed by
// the gateway; it only stops delivering answers. After silence without an answer it counts as cut.
const (
	beat    = 100 * time.Millisecond
	silence = 2 * time.Second
)

// watchTalking returns the time of the last answer over a connection, or zero if answers do not stop.
func (g *generator) watchTalking(c net.Conn, sent *atomic.Bool) (end time.Time) {
	stop := make(chan struct{})
	defer close(stop)
	go g.sendRequests(c, stop)
	answer := make([]byte, 4096)
	limit := time.Now().Add(patience)
	for end = time.Now(); time.Now().Before(limit); end = time.Now() {
		_ = c.SetReadDeadline(time.Now().Add(silence))
		_, err := c.Read(answer)
		if err != nil && sent.Load() {
			return end
		}
		if err != nil {
			break // the connection should still be open
		}
	}
	return time.Time{}
}

// sendRequests sends requests until stop is closed or the connection fails. Connections take turns within a beat.
func (g *generator) sendRequests(c net.Conn, stop <-chan struct{}) {
	request := g.request(g.Name)
	wait := rand.N(beat)
	for {
		select {
		case <-stop:
			return
		case <-time.After(wait):
		}
		wait = beat
		if _, err := c.Write(request); err != nil {
			return
		}
	}
}
