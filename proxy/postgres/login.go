package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	postgresrule "boxgate/rule/postgres"
)

// Memory for a connection to a server, in bytes.
const (
	// LoginCost is what it takes until the server is logged in to: TLS, what the server says, and that decoded.
	LoginCost = socket.ServerCost + 2*maxLogin
	// LinkCost is what it takes from then on.
	LinkCost = 120 << 10
)

// server is a server that is logged in to and ready for queries.
type server struct {
	conn       *tls.Conn
	in         io.Reader // what it sends from now on
	addr       netip.Addr
	parameters map[string]string
	status     byte   // of the transaction
	minor      uint16 // of the version agreed on
	process    uint32
	key        []byte
}

// base returns a configuration without what the environment of the gateway says: all that a login depends on is set over it.
var base = sync.OnceValues(func() (*pgconn.Config, error) {
	return pgconn.ParseConfig("host=server port=5432 user=nobody database=none password=none sslmode=disable")
})

// attempt is one login.
type attempt struct {
	s        *Session
	password string
	dialled  net.Conn
	wire     socket.ToServer // over which TLS is spoken
	verified bool            // the TLS handshake has shown the server to be the one of the name
	failed   error           // of the dial
	in       io.Reader
	minor    uint16 // of the version asked for
	messages *messages
}

// longKeys is the minor version of the protocol from which keys to cancel queries have any length, and the newest that is
// spoken.
const longKeys = 2

// login connects to the server and logs in. Only if the box asks for a version of the protocol after 3.0 is the server asked for
// one: some do not answer that.
func (s *Session) login(ctx context.Context, parameters map[string]string, minor uint16) (*server, *Refusal) {
	ctx, cancel := context.WithTimeout(ctx, s.LoginTimeout)
	defer cancel()
	password, err := s.Password(ctx)
	if err != nil {
		return nil, &Refusal{name.ReasonSecretUnavailable, codeUnavailable,
			"the secret with which the gateway logs in to " + s.Authority + " is not available", err}
	}
	a := &attempt{s: s, password: password.Reveal()}
	if minor >= longKeys {
		a.minor = longKeys
	}
	config, err := a.config(parameters)
	if err != nil {
		return nil, &Refusal{Reason: name.ReasonInternal, Err: err}
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, a.refusal(err)
	}
	server, err := a.take(conn)
	if err != nil {
		_ = a.dialled.Close()
		return nil, a.refusal(err)
	}
	return server, nil
}

// config returns how to log in. The server must prove to be the one of the name, and must want the password: the weaker ways
// to prove it are for logins that say so.
func (a *attempt) config(parameters map[string]string) (*pgconn.Config, error) {
	of, err := base()
	if err != nil {
		return nil, err
	}
	c, login := of.Copy(), a.s.Login
	c.Host, c.User, c.Database, c.Password = a.s.Name.String(), login.User, login.Database, a.password
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{c.Host}, nil }
	c.DialFunc, c.TLSConfig, c.Fallbacks = a.dial, a.s.tlsConfig(func() {
		a.verified = true
		a.wire.Established()
	}), nil
	c.RuntimeParams, c.ConnectTimeout, c.MaxProtocolMessageBodyLen = parameters, 0, maxMessage
	c.SSLNegotiation, c.SSLCertMode, c.ChannelBinding = "postgres", "disable", "prefer"
	c.MinProtocolVersion, c.MaxProtocolVersion = "3.0", fmt.Sprintf("3.%d", a.minor)
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		a.in = content{r, a.wire}
		a.messages = &messages{r: a.in}
		return pgproto3.NewFrontend(a.messages, w)
	}
	c.AfterNetConnect, c.ValidateConnect, c.AfterConnect, c.OAuthTokenProvider = nil, nil, nil, nil
	c.RequireAuth = "scram-sha-256"
	if login.Auth != postgresrule.SCRAM {
		c.RequireAuth += "," + login.Auth.String()
	}
	return c, nil
}

// tlsConfig returns how to speak TLS with the server. verified is called once it has proved to be the one of the name.
func (s *Session) tlsConfig(verified func()) *tls.Config {
	return &tls.Config{
		ServerName: s.Name.String(), RootCAs: s.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{ProtocolName}, Time: s.Clock,
		VerifyConnection: func(cs tls.ConnectionState) error {
			err := problem.WeakKey(cs)
			if err == nil {
				verified()
			}
			return err
		},
	}
}

func (a *attempt) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if a.dialled, a.failed = a.s.Dial(ctx, netip.Addr{}); a.failed != nil {
		return nil, a.failed
	}
	a.wire = socket.NewToServer(a.dialled)
	return a.wire, nil
}

// content reads what a server sends inside TLS.
type content struct {
	io.Reader
	wire socket.ToServer
}

// Read implements [io.Reader].
func (c content) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.wire.Content()
	}
	return n, err
}

// take takes the connection from the library that logged in.
func (a *attempt) take(conn *pgconn.PgConn) (*server, error) {
	taken, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	secure, ok := taken.Conn.(*tls.Conn)
	if !ok || !a.verified {
		return nil, errors.New("the server was not verified")
	}
	if len(taken.SecretKey) > maxKey {
		return nil, errors.New("the server's key to cancel queries is too long")
	}
	if err := secure.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if a.messages.negotiated {
		a.minor = 0 // 3.1 is reserved
	}
	return &server{
		minor: a.minor, conn: secure, in: a.in, addr: addrOf(a.dialled), parameters: taken.ParameterStatuses, status: taken.TxStatus,
		process: taken.PID, key: taken.SecretKey,
	}, nil
}

// refusal says why the login failed. What the server itself says is passed on, but never the password.
func (a *attempt) refusal(err error) *Refusal {
	var said *pgconn.PgError
	switch {
	case a.failed != nil:
		p := problem.Of(a.failed)
		return &Refusal{p.Reason, codeUnreachable, p.Detail, a.failed}
	case a.dialled != nil && !a.verified:
		return a.s.notVerified(err)
	case errors.As(err, &said):
		text, code := a.without(said.Message), state(said.Code)
		return &Refusal{name.ReasonUpstreamLogin, code, text, fmt.Errorf("the server refused the login: %s (%s)", text, code)}
	}
	return &Refusal{name.ReasonUpstreamLogin, codeUnreachable, "the gateway could not log in to " + a.s.Authority,
		errors.New(a.without(err.Error()))}
}

// notVerified is the refusal where a server does not speak TLS, or not with a certificate for the name.
func (s *Session) notVerified(err error) *Refusal {
	return &Refusal{name.ReasonUpstreamTLS, codeUnreachable, "the TLS certificate of " + s.Authority + " could not be verified",
		&problem.Upstream{Reason: name.ReasonUpstreamTLS, Name: s.Name, Err: err}}
}

func addrOf(c net.Conn) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
