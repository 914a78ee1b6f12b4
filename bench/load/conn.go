package load

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
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
