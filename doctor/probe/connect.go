package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/doctor/cause"
	"boxgate/proxy/offer"
	"boxgate/proxy/problem"
)

// How long a process waits for an address, for a handshake or the next bytes, and in all.
const (
	connectPatience = 3 * time.Second
	patience        = 6 * time.Second
	allPatience     = 24 * time.Second
)

// maxAddrs bounds the addresses that are tried.
const maxAddrs = 16

// prober is one run.
type prober struct {
	Plan
	ctx    context.Context
	roots  *x509.CertPool
	addrs  []netip.Addr
	alive  netip.Addr // the first address that accepts
	report Report
	chain  []*x509.Certificate
}

// Run carries out a plan. An error means that it could not begin; failures of the server are in the report.
func Run(p Plan) (Report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), allPatience)
	defer cancel()
	r := &prober{Plan: p, ctx: ctx, roots: x509.NewCertPool()}
	if p.System {
		system, err := x509.SystemCertPool()
		if err != nil {
			return r.report, fmt.Errorf("the host's root certificates: %w", err)
		}
		r.roots = system
	}
	r.roots.AppendCertsFromPEM(p.Roots)
	if !r.lookUp() || !r.connect() {
		return r.report, nil
	}
	r.ask()
	return r.report, nil
}

func (r *prober) note(ids ...cause.ID) {
	for _, id := range ids {
		if id != "" && !slices.Contains(r.report.Causes, id) {
			r.report.Causes = append(r.report.Causes, id)
		}
	}
}

// lookUp finds the addresses.
func (r *prober) lookUp() bool {
	r.addrs = r.Addrs
	if len(r.addrs) == 0 && r.DNS.IsValid() {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, r.DNS.String())
		}}
		found, err := resolver.LookupNetIP(r.ctx, "ip", r.Host+".")
		if err != nil {
			r.report.Lookup = clip(err.Error())
		}
		r.addrs = found
	}
	if len(r.addrs) == 0 {
		r.note(cause.Unresolved)
		return false
	}
	r.addrs = r.addrs[:min(len(r.addrs), maxAddrs)]
	for i, a := range r.addrs {
		r.addrs[i] = a.Unmap()
	}
	slices.SortStableFunc(r.addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return true
}

// connect tries every address once. In a box it does not: the gateway accepts connections to every address of the name, and would log one
// without a request as a denial.
func (r *prober) connect() bool {
	if r.Addrs == nil {
		r.alive = r.addrs[0]
		r.report.Attempts = []Attempt{{Addr: r.alive}}
		return true
	}
	for _, a := range r.addrs {
		attempt := Attempt{Addr: a}
		c, err := r.dialAddr(a)
		switch {
		case err != nil:
			attempt.Error = clip(reasonOf(err))
		default:
			_ = c.Close()
			if !r.alive.IsValid() {
				r.alive = a
			}
		}
		r.report.Attempts = append(r.report.Attempts, attempt)
	}
	dead := slices.ContainsFunc(r.report.Attempts, func(a Attempt) bool { return a.Error != "" })
	switch {
	case !r.alive.IsValid():
		r.note(cause.Unreachable)
		return false
	case dead:
		r.note(cause.DeadAddress)
	}
	return true
}

// reasonOf returns the innermost error of the network, without addresses.
func reasonOf(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		if op.Timeout() {
			return "timed out"
		}
		return op.Err.Error()
	}
	return err.Error()
}

func (r *prober) dialAddr(a netip.Addr) (net.Conn, error) {
	d := net.Dialer{Timeout: connectPatience}
	return d.DialContext(r.ctx, "tcp", netip.AddrPortFrom(a, r.Port).String())
}

// dial connects to the first address that accepts.
func (r *prober) dial() (net.Conn, error) {
	c, err := r.dialAddr(r.alive)
	if err != nil {
		if r.Addrs == nil && len(r.report.Attempts) > 0 {
			r.report.Attempts[0].Error = clip(reasonOf(err))
		}
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(patience))
}

// attempts are configurations of the lenient client, from the usual one to the most lenient one, each with the cause of the
// failure of the previous ones.
var attempts = []struct {
	why  cause.ID
	edit func(*tls.Config)
}{
	{"", func(*tls.Config) {}},
	{"", func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} }},
	{cause.LargeHello, func(c *tls.Config) {
		c.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}
	}},
	{cause.UnknownALPN, func(c *tls.Config) { c.NextProtos = nil }},
	{"", func(c *tls.Config) { // the cause is in its parameters
		c.MinVersion, c.CipherSuites = tls.VersionTLS10, nil
		for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
			c.CipherSuites = append(c.CipherSuites, s.ID)
		}
	}},
}

// handshake connects with the first of attempts that succeeds. If all fail, the error is that of the first.
func (r *prober) handshake() (conn *tls.Conn, asked bool, err error) {
	for _, a := range attempts {
		raw, dialErr := r.dial()
		if dialErr != nil {
			return nil, asked, errors.Join(err, dialErr)
		}
		config := &tls.Config{
			ServerName: r.Host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, // [cause.OfChain] verifies
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				asked = true
				return &tls.Certificate{}, nil
			},
			Renegotiation: tls.RenegotiateOnceAsClient,
		}
		a.edit(config)
		c := tls.Client(raw, config)
		failed := c.HandshakeContext(r.ctx)
		if failed == nil {
			r.note(a.why)
			return c, asked, nil
		}
		_ = raw.Close()
		if err == nil {
			err = failed
		}
		record := tls.RecordHeaderError{}
		slow := errors.Is(failed, os.ErrDeadlineExceeded)
		if errors.As(failed, &record) || asked || slow && a.why == cause.LargeHello {
			return nil, asked, failed
		}
	}
	return nil, asked, err
}

// scan asks a server for its offer and its certificates after all handshakes have failed.
func (r *prober) scan(why error) {
	var o offer.Offer
	r.hello(tls.VersionTLS13, o.Read)
	var list [][]byte
	r.hello(tls.VersionTLS12, func(in io.Reader) { list = offer.Certificates(in) })
	for _, der := range list {
		if c, err := x509.ParseCertificate(der); err == nil {
			r.chain = append(r.chain, c)
		}
	}
	id := cause.ID("")
	if problem.NothingInCommon(why) {
		id = cause.OfParameters(o.Version, o.Suite, o.Group)
	}
	if o != (offer.Offer{}) {
		r.report.Offer = tls.VersionName(o.Version) + " " + offer.SuiteName(o.Suite)
		if o.Group != 0 {
			r.report.Offer += " " + offer.GroupName(o.Group)
		}
	}
	found := cause.OfChain(r.chain, r.Host, r.roots, time.Now())
	switch {
	case id != "":
		r.note(id)
	case o == offer.Offer{} && !answered(why):
		r.note(cause.NoAnswer)
	case !slices.Contains(found, cause.UnsupportedKey):
		r.note(cause.HandshakeFails)
	}
	r.note(found...)
}

// answered reports whether a server answered a handshake that failed, if only by an alert.
func answered(err error) bool {
	_, alert := problem.AlertOf(err)
	return alert || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, new(*net.OpError))
}

// hello sends a ClientHello on a connection of its own and reads the answer.
func (r *prober) hello(newest uint16, read func(io.Reader)) {
	c, err := r.dial()
	if err != nil {
		return
	}
	defer c.Close()
	if text, err := offer.Hello(r.Host, newest); err == nil {
		if _, err := c.Write(text); err == nil {
			read(c)
		}
	}
}

// describe records the parameters of a connection.
func (c *Client) describe(s tls.ConnectionState) {
	c.Version, c.Suite, c.ALPN = tls.VersionName(s.Version), strings.TrimPrefix(offer.SuiteName(s.CipherSuite), "TLS_"), s.NegotiatedProtocol
	if s.CurveID != 0 {
		c.Group = s.CurveID.String()
	}
}

// authority returns the value of Host.
func (r *prober) authority() string {
	if r.Port == 443 || r.Port == 80 {
		return r.Host
	}
	return net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
}
