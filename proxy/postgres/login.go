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
	// LoginCost is the memory during the login: TLS, the server's messages, and their decoded form.
	LoginCost = socket.ServerCost + 2*maxLogin
	// LinkCost is the memory after the login.
	LinkCost = 120 << 10
)

// server is a server connection after the login, ready for queries.
type server struct {
	conn       *tls.Conn
	in         io.Reader // reads the data after the login
	addr       netip.Addr
	parameters map[string]string
	status     byte   // transaction status
	minor      uint16 // minor version of the protocol in use
	process    uint32
	key        []byte
}

// base returns a configuration that ignores the environment (PGHOST etc.). config overwrites everything on which a login
// depends.
var base = sync.OnceValues(func() (*pgconn.Config, error) {
	return pgconn.ParseConfig("host=server port=5432 user=nobody database=none password=none sslmode=disable")
})

// attempt is one login.
type attempt struct {
	s        *Session
	password string
	dialled  net.Conn
	wire     socket.ToServer // carries the TLS connection
	verified bool            // the TLS handshake has verified the server's name
	dialErr  error           // error of the dial
	in       io.Reader
	minor    uint16 // requested minor version
	messages *messageReader
}

// longKeys is the minor version of the protocol with cancel keys of variable length. It is also the newest
// supported version.
const longKeys = 2

// login connects to the server and logs in. It requests a protocol version after 3.0 only if the box does: some servers do
// not answer such a request.
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
	server, err := a.hijack(conn)
	if err != nil {
		_ = a.dialled.Close()
		return nil, a.refusal(err)
	}
	return server, nil
}

// config returns the configuration of the login. The server's certificate must match its name. Methods of authentication
// that are weaker than SCRAM, or their absence, require a login that names them.
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
		a.in = contentReader{r, a.wire}
		a.messages = &messageReader{r: a.in}
		return pgproto3.NewFrontend(a.messages, w)
	}
	c.AfterNetConnect, c.ValidateConnect, c.AfterConnect, c.OAuthTokenProvider = nil, nil, nil, nil
	c.RequireAuth = "scram-sha-256"
	if login.Auth != postgresrule.SCRAM {
		c.RequireAuth += "," + login.Auth.String()
	}
	return c, nil
}

// tlsConfig returns the TLS configuration for the server. verified is called after the server's certificate was verified.
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
	if a.dialled, a.dialErr = a.s.Dial(ctx, netip.Addr{}); a.dialErr != nil {
		return nil, a.dialErr
	}
	a.wire = socket.NewToServer(a.dialled)
	return a.wire, nil
}

// contentReader reads the server's data inside TLS and reports to wire that there was some.
type contentReader struct {
	io.Reader
	wire socket.ToServer
}

// Read implements [io.Reader].
func (c contentReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.wire.Content()
	}
	return n, err
}

// hijack takes the connection over from pgconn after its login.
func (a *attempt) hijack(conn *pgconn.PgConn) (*server, error) {
	hijacked, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	secure, ok := hijacked.Conn.(*tls.Conn)
	if !ok || !a.verified {
		return nil, errors.New("the server was not verified")
	}
	if len(hijacked.SecretKey) > maxKey {
		return nil, errors.New("the server's key to cancel queries is too long")
	}
	if err := secure.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if a.messages.negotiated {
		a.minor = 0 // 3.1 is reserved
	}
	return &server{
		minor: a.minor, conn: secure, in: a.in, addr: addrOf(a.dialled), parameters: hijacked.ParameterStatuses, status: hijacked.TxStatus,
		process: hijacked.PID, key: hijacked.SecretKey,
	}, nil
}

// refusal maps an error of the login to a refusal. The server's own message is forwarded, but never the password.
func (a *attempt) refusal(err error) *Refusal {
	var serverErr *pgconn.PgError
	switch {
	case a.dialErr != nil:
		p := problem.Of(a.dialErr)
		return &Refusal{p.Reason, codeUnreachable, p.Detail, a.dialErr}
	case a.dialled != nil && !a.verified:
		return a.s.notVerified(err)
	case errors.As(err, &serverErr):
		text, code := a.withoutPassword(serverErr.Message), sqlState(serverErr.Code)
		return &Refusal{name.ReasonUpstreamLogin, code, text, fmt.Errorf("the server refused the login: %s (%s)", text, code)}
	}
	return &Refusal{name.ReasonUpstreamLogin, codeUnreachable, "the gateway could not log in to " + a.s.Authority,
		errors.New(a.withoutPassword(err.Error()))}
}

// notVerified is the refusal of a server that does not speak TLS, or has no valid certificate for the name.
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
