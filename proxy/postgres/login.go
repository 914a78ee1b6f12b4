package postgres

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
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
	began    atomic.Bool // dial was called
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

// errOneDial refuses the connection on which pgconn would cancel queries after a failed login, at any later time.
var errOneDial = errors.New("a login dials once")

// dial connects to the server.
func (a *attempt) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if a.began.Swap(true) {
		return nil, errOneDial
	}
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

const (
	// maxMessage is the longest message of a server during the login.
	maxMessage = 64 << 10
	// maxLogin is the most bytes that a server may send during the login.
	maxLogin = 64 << 10
	// maxIterations limits the PBKDF2 iterations of SCRAM: 25 times PostgreSQL's default. A box that can change its user's
	// password, as every user may, can choose the number.
	maxIterations = 100_000
)

// messageReader limits each read to the end of a server's message, so that a reader of single messages does not consume data
// after the last. It fails on messages that would make the login costly.
type messageReader struct {
	r    io.Reader
	head [5]byte // the type, and the length including itself
	n    int     // bytes of head that were read
	rest uint32  // bytes of the body that were not read
	body []byte  // unread part of a body that was read as a whole
	read int     // total bytes

	negotiated bool // the server speaks an older version than requested
}

// errLogin ends a login if the server sends more than maxLogin.
var errLogin = fmt.Errorf("the server has sent more than %d KiB during the login", maxLogin>>10)

// Read implements [io.Reader].
func (m *messageReader) Read(p []byte) (int, error) {
	if m.read > maxLogin {
		return 0, errLogin
	}
	n, err := m.readPart(p)
	m.read += n
	return n, err
}

// readPart reads at most up to the end of the current message.
func (m *messageReader) readPart(p []byte) (int, error) {
	const authentication = 'R'
	if m.head[0] == authentication && m.rest > 0 && m.rest <= maxMessage {
		if err := m.challenge(); err != nil {
			return 0, err
		}
	}
	switch {
	case len(m.body) > 0:
		n := copy(p, m.body)
		m.body = m.body[n:]
		return n, nil
	case m.rest > 0:
		n, err := m.r.Read(p[:min(len(p), int(m.rest))])
		m.rest -= uint32(n)
		return n, err
	}
	n, err := m.r.Read(p[:min(len(p), len(m.head)-m.n)])
	copy(m.head[m.n:], p[:n])
	if m.n += n; m.n == len(m.head) {
		m.n = 0
		m.negotiated = m.negotiated || m.head[0] == 'v'
		length := binary.BigEndian.Uint32(m.head[1:])
		m.rest = max(length, 4) - 4
	}
	return n, err
}

// challenge reads an authentication message as a whole, and limits the cost of answering it.
func (m *messageReader) challenge() error {
	m.body = make([]byte, m.rest)
	if _, err := io.ReadFull(m.r, m.body); err != nil {
		return err
	}
	m.rest = 0
	if n := iterations(m.body); n > maxIterations {
		return fmt.Errorf("the server asks for %d iterations of SCRAM-SHA-256; at most %d are made", n, maxIterations)
	}
	return nil
}

// iterations returns the number of iterations that a SCRAM message requests (RFC 5802, 5.1), or 0 for other messages.
func iterations(body []byte) int {
	const saslContinue = 11
	if len(body) < 4 || binary.BigEndian.Uint32(body) != saslContinue {
		return 0
	}
	parts := bytes.SplitN(body[4:], []byte(","), 3)
	n, err := strconv.Atoi(string(bytes.TrimPrefix(parts[len(parts)-1], []byte("i="))))
	if err != nil {
		return 0
	}
	return n
}

// This part removes the password from the server's messages about a failed login.

// verifiers matches the stored forms of passwords in PostgreSQL, which allow offline guessing: SCRAM verifiers and MD5
// sums.
var verifiers = regexp.MustCompile(`(?i)SCRAM-SHA-256\$|md5[0-9a-f]{32}`)

// withoutPassword returns a text of the server, or a placeholder if it contains the password in some form: plain, in hexadecimal or
// base64, escaped for SQL, JSON or URLs, or hashed as PostgreSQL does.
func (a *attempt) withoutPassword(text string) string {
	switch {
	case len(a.password) < scrub.MinLength:
		return "(not shown: the password is too short to be recognized in it)"
	case verifiers.MatchString(text), scrub.New(a.passwordForms()).Mask([]byte(text)):
		return "(not shown: it contains the password)"
	}
	return text
}

// passwordForms returns the forms of the password that package scrub does not derive itself. PostgreSQL's MD5 sums are of the
// password followed by the user name.
func (a *attempt) passwordForms() []string {
	forms := []string{a.password}
	for _, quote := range []string{`'`, `"`, `\`} {
		forms = append(forms, strings.ReplaceAll(a.password, quote, quote+quote))
	}
	for _, salted := range []string{a.password, a.password + a.s.Login.User} {
		sum := md5.Sum([]byte(salted))
		forms = append(forms, hex.EncodeToString(sum[:]), string(sum[:]))
	}
	return forms
}

// sqlState returns the server's SQLSTATE code if it is well-formed, or a generic one.
func sqlState(code string) string {
	if len(code) != 5 || strings.ContainsFunc(code, func(c rune) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'Z') }) {
		return codeUnreachable
	}
	return code
}
