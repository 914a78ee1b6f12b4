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

// target is one name to reach.
type target struct {
	host string
	conf *tls.Config
}

// next returns the target of the next connection: the only one, or the next name that was not used yet.
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

// tlsConfig offers the same to every program: X25519 and AES-128-GCM. Which certificate answers is compared by issue (see
// note), and whether the program verified its upstream is not for a client to see.
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

// dial connects, through an explicit proxy if there is one.
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

// connect asks an explicit proxy for a tunnel. Nothing may follow the answer before the client has spoken.
func connect(c net.Conn, host string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", host); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // has none
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || r.Buffered() > 0 {
		return fmt.Errorf("CONNECT: %s, and %d bytes", resp.Status, r.Buffered())
	}
	return nil
}

// open connects and shakes hands. The connection is closed when the measurement is aborted.
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
	if err := g.note(c.ConnectionState()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, raw.SetDeadline(time.Time{})
}

// reach is open, or the connection alone if there is no TLS.
func (g *generator) reach(t target) (net.Conn, error) {
	if g.Plain {
		return g.dial(t.host)
	}
	return g.open(t)
}

// note keeps what the first handshake negotiated, and refuses another certificate than one for the name.
func (g *generator) note(s tls.ConnectionState) error {
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

// ask resolves all names, so that the box has been told their addresses, as that of any client.
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

// countingReader counts the bytes that a download has brought.
type countingReader struct {
	r io.Reader
	g *generator
}

func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.g.moved(n)
	return n, err
}
