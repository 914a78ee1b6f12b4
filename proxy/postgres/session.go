package postgres

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"boxgate/policy"
	"boxgate/policy/name"
	postgresrule "boxgate/rule/postgres"
)

// Secured is a TLS connection.
type Secured interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

// Session opens one connection of a box to a server that the gateway logs in to. All fields but Roots are required.
type Session struct {
	Client    net.Conn // the box, from its first byte
	Direct    bool     // the first byte belongs to TLS: no SSLRequest before it
	Box       policy.BoxID
	Name      name.Name // of the server, in its certificate
	Authority string    // name and port of the server
	Login     *postgresrule.Login
	Keys      *Keys
	Roots     *x509.CertPool // trusted for the server; nil: the system's
	Clock     func() time.Time

	// Terminate performs a TLS handshake with the box, as the server.
	Terminate func(net.Conn) (Secured, error)
	// Password returns the password. Its error is logged and not sent to the box.
	Password func(context.Context) (name.Secret, error)
	// Dial connects to the server, at the given address if it is valid. Errors are of type *[policy.DeniedError] or
	// *problem.Upstream.
	Dial func(context.Context, netip.Addr) (net.Conn, error)

	HelloTimeout time.Duration // for the box's startup message
	LoginTimeout time.Duration // for the login at the server
}

// ErrCancelled reports that the connection carried a cancel request, which was forwarded. The connection is done.
var ErrCancelled = errors.New("the connection carried a request to cancel")

// Open talks to both sides until the server is ready for queries, and completes the box's login. If the error is of type
// *[Refusal], the box has already received it.
func (s *Session) Open(ctx context.Context) (*Link, error) {
	if err := s.Client.SetDeadline(time.Now().Add(s.HelloTimeout)); err != nil {
		return nil, err
	}
	first, err := s.readHello()
	if err != nil {
		return nil, s.sendRefusal(helloRefusal(err))
	}
	if first.code == codeCancel {
		return nil, s.cancel(ctx, first)
	}
	asked, err := parseStartup(first)
	if err != nil {
		return nil, s.sendRefusal(helloRefusal(err))
	}
	parameters, refused := s.checkStartup(asked)
	if refused != nil {
		return nil, s.sendRefusal(refused)
	}
	server, refused := s.login(ctx, parameters, asked.minor)
	if refused != nil {
		return nil, s.sendRefusal(refused)
	}
	link := s.newLink(server)
	if err := s.confirmLogin(asked, server, link.key); err != nil {
		link.Close()
		return nil, &Refusal{Reason: name.ReasonClientTLS, Err: fmt.Errorf("confirming the login to the box: %w", err)}
	}
	return link, nil
}

// readHello reads the box's packets up to a startup message or cancel request. TLS may come before it, directly or after an
// SSLRequest; GSSAPI encryption is declined.
func (s *Session) readHello() (packet, error) {
	if s.Direct {
		if err := s.startTLS(); err != nil {
			return packet{}, err
		}
	}
	var asked [2]bool
	for {
		p, err := readPacket(s.Client)
		if err != nil {
			return p, err
		}
		_, secured := s.Client.(Secured)
		switch {
		case p.code == codeTLS && len(p.body) == 0 && !secured && !asked[0]:
			asked[0] = true
			if _, err := s.Client.Write([]byte{'S'}); err != nil {
				return p, err
			}
			if err := s.startTLS(); err != nil {
				return p, err
			}
		case p.code == codeGSS && len(p.body) == 0 && !secured && !asked[1]:
			asked[1] = true
			if _, err := s.Client.Write([]byte{'N'}); err != nil {
				return p, err
			}
		case p.code == codeTLS || p.code == codeGSS:
			return p, errStartup
		default:
			return p, nil
		}
	}
}

// errHandshake wraps the error of a TLS handshake with the box.
type errHandshake struct{ error }

// ProtocolName is the ALPN protocol of PostgreSQL. It is required for TLS without an SSLRequest.
const ProtocolName = "postgresql"

func (s *Session) startTLS() error {
	conn, err := s.Terminate(s.Client)
	if err != nil {
		return errHandshake{err}
	}
	s.Client = conn
	if s.Direct && conn.ConnectionState().NegotiatedProtocol != ProtocolName {
		return errHandshake{errors.New("direct TLS without the protocol name " + ProtocolName)}
	}
	return nil
}

// confirmLogin completes the box's login with the server's parameters.
func (s *Session) confirmLogin(asked startup, server *server, key cancel) error {
	var b pgproto3Buffer
	if asked.minor != server.minor || len(asked.options) > 0 {
		// The documentation describes the minor version here, but PostgreSQL sends both and libpq accepts only that.
		b.add(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: codeVersion3 | uint32(server.minor), UnrecognizedOptions: asked.options})
	}
	b.add(&pgproto3.AuthenticationOk{})
	for name, value := range server.parameters {
		b.add(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	if len(key.key) > 0 {
		b.add(&pgproto3.BackendKeyData{ProcessID: key.process, SecretKey: key.key})
	}
	b.add(&pgproto3.ReadyForQuery{TxStatus: server.status})
	if b.err != nil {
		return b.err
	}
	if err := s.Client.SetDeadline(time.Now().Add(s.HelloTimeout)); err != nil {
		return err
	}
	if _, err := s.Client.Write(b.bytes); err != nil {
		return err
	}
	return s.Client.SetDeadline(time.Time{})
}

// pgproto3Buffer collects encoded messages.
type pgproto3Buffer struct {
	bytes []byte
	err   error
}

func (b *pgproto3Buffer) add(m pgproto3.BackendMessage) {
	if b.err == nil {
		b.bytes, b.err = m.Encode(b.bytes)
	}
}

// Refusal is the reason why a connection is refused. The box receives Text with the SQLSTATE Code; the log has Err.
type Refusal struct {
	Reason     name.Reason
	Code, Text string
	Err        error
}

// Error returns the text for the log.
func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return r.Text
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// The SQLSTATE codes of refusals (PostgreSQL documentation, appendix A).
const (
	codeProtocolViolation = "08P01"
	codeUnreachable       = "08001"
	codeNotAuthorized     = "28000"
	codeUnsupported       = "0A000"
	codeUnavailable       = "58000"
)

// helloRefusal maps an error before the startup message to a refusal.
func helloRefusal(err error) *Refusal {
	var handshake errHandshake
	switch {
	case errors.As(err, &handshake):
		return &Refusal{Reason: name.ReasonClientTLS, Err: handshake.error}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Refusal{name.ReasonPeekTimeout, codeProtocolViolation, "the startup packet was not complete in time", err}
	case errors.Is(err, errStartup):
		return &Refusal{name.ReasonProtocol, codeProtocolViolation, "this is not the PostgreSQL protocol, version 3", err}
	}
	return &Refusal{Reason: name.ReasonProtocol, Err: fmt.Errorf("before the startup packet was complete: %w", err)}
}

// sendRefusal sends a refusal to the box.
func (s *Session) sendRefusal(r *Refusal) error {
	if r.Text == "" {
		return r
	}
	var b pgproto3Buffer
	b.add(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: r.Code, Message: r.Text})
	_ = s.Client.SetDeadline(time.Now().Add(time.Second))
	_, _ = s.Client.Write(b.bytes) // the client may have disconnected
	return r
}

// Codes of the packets that a client may send first (PostgreSQL documentation, 54.7). They have no type byte.
const (
	codeVersion3 = 3 << 16
	codeCancel   = 1234<<16 | 5678
	codeTLS      = 1234<<16 | 5679
	codeGSS      = 1234<<16 | 5680
)

// maxStartup is the longest first packet (MAX_STARTUP_PACKET_LENGTH of PostgreSQL).
const maxStartup = 10000

// errStartup is the error of a first packet that is malformed or not PostgreSQL's.
var errStartup = errors.New("malformed startup packet")

// packet is a first packet without its length.
type packet struct {
	code uint32
	body []byte
}

// readPacket reads one first packet, and no byte more, because TLS may follow.
func readPacket(r io.Reader) (packet, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packet{}, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n < uint32(len(head)) || n > maxStartup {
		return packet{}, errStartup
	}
	p := packet{code: binary.BigEndian.Uint32(head[4:]), body: make([]byte, n-uint32(len(head)))}
	_, err := io.ReadFull(r, p.body)
	return p, err
}

// startup is a parsed StartupMessage.
type startup struct {
	minor      uint16            // minor version; the major version is 3
	parameters map[string]string // including user and database
	options    []string          // protocol options, whose names begin with "_pq_."
}

// parseStartup parses a StartupMessage: NUL-terminated pairs of name and value, then an empty name. Duplicate names are
// rejected, because servers could differ on which value counts.
func parseStartup(p packet) (startup, error) {
	s := startup{minor: uint16(p.code), parameters: map[string]string{}}
	if p.code>>16 != codeVersion3>>16 {
		return s, errStartup
	}
	for rest := p.body; ; {
		name, after, ok := bytes.Cut(rest, []byte{0})
		if ok && len(name) == 0 && len(after) == 0 {
			return s, nil
		}
		value, after, whole := bytes.Cut(after, []byte{0})
		if _, twice := s.parameters[string(name)]; !ok || !whole || twice || len(name) == 0 {
			return s, errStartup
		}
		if bytes.HasPrefix(name, []byte("_pq_.")) {
			s.options = append(s.options, string(name))
		} else {
			s.parameters[string(name)] = string(value)
		}
		rest = after
	}
}

// cancel is a request to cancel the query of another connection.
type cancel struct {
	process uint32
	key     []byte
}

func parseCancel(p packet) (c cancel, err error) {
	if len(p.body) < 4+shortKey || len(p.body) > 4+maxKey {
		return c, errStartup
	}
	return cancel{binary.BigEndian.Uint32(p.body), p.body[4:]}, nil
}

// safeParameters are the startup parameters that a client may set, as drivers do. The box could set each of them
// with SET as well.
var safeParameters = []string{
	"application_name", "client_encoding", "client_min_messages", "datestyle", "default_transaction_isolation",
	"default_transaction_read_only", "extra_float_digits", "idle_in_transaction_session_timeout", "intervalstyle",
	"lock_timeout", "search_path", "standard_conforming_strings", "statement_timeout", "timezone",
}

// checkStartup compares the box's startup message with the login, and returns the parameters to forward.
func (s *Session) checkStartup(asked startup) (map[string]string, *Refusal) {
	refuse := func(text string, args ...any) (map[string]string, *Refusal) {
		return nil, &Refusal{Reason: name.ReasonHeaderRule, Code: codeNotAuthorized, Text: fmt.Sprintf(text, args...)}
	}
	passed := map[string]string{}
	for n, value := range asked.parameters {
		switch {
		case n == "user" && value != s.Login.User:
			return refuse("the gateway logs in to %s as user %q only", s.Authority, s.Login.User)
		case n == "database" && value != s.Login.Database:
			return refuse("the gateway logs in to database %q of %s only", s.Login.Database, s.Authority)
		case n == "user", n == "database":
		case slices.Contains(safeParameters, strings.ToLower(n)):
			passed[n] = value
		default:
			return nil, &Refusal{Reason: name.ReasonHeaderRule, Code: codeUnsupported,
				Text: fmt.Sprintf("the startup parameter %q is not passed on; use SET once connected", truncated(n))}
		}
	}
	return passed, nil
}

// truncated truncates a text from the box for an error message.
func truncated(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// Link is a connection between a box and a server that the gateway has logged in to.
type Link struct {
	Client    net.Conn   // the box, inside TLS if it requested that
	Server    *Server    // checks the messages written to it
	Addr      netip.Addr // of the server
	key       cancel     // generated by the gateway; empty if the server sent none
	removeKey func()     // removes the key
}

func (s *Session) newLink(of *server) *Link {
	l := &Link{Client: s.Client, Server: &Server{Conn: of.conn, in: of.in}, Addr: of.addr, removeKey: func() {}}
	if len(of.key) > 0 {
		n := shortKey
		if of.minor >= longKeys {
			n = longKey
		}
		l.key = s.Keys.add(s.Box, backend{s.Authority, of.addr, of.process, of.key}, n)
		l.removeKey = func() { s.Keys.remove(s.Box, s.Authority, l.key) }
	}
	return l
}

// Close closes the connection to the server and removes the box's key to cancel its queries.
func (l *Link) Close() {
	l.removeKey()
	_ = l.Server.NetConn().Close() // not the TLS connection: that waits for the server
}

// Server is the server's end of a link. A write of a message that a client must not send after the login fails before any
// byte of that message is sent.
type Server struct {
	*tls.Conn
	in io.Reader

	head [5]byte
	n    int    // bytes of head that were written
	rest uint32 // remaining bytes of the message's body
}

// ErrMessage is returned for messages that a client must not send after the login.
var ErrMessage = errors.New("the box sent a message that is not allowed after the login")

// Read implements [net.Conn].
func (c *Server) Read(p []byte) (int, error) { return c.in.Read(p) }

// clientMessages are the types of messages that a client may send after the login: Bind, Close, CopyData, CopyDone,
// CopyFail, Describe, Execute, Flush, FunctionCall, Parse, Query, Sync, Terminate. A password message is not among them.
var clientMessages = []byte("BCdcfDEHFPQSX")

// Write implements [net.Conn].
func (c *Server) Write(p []byte) (int, error) {
	if !c.checkMessages(p) {
		return 0, ErrMessage
	}
	return c.Conn.Write(p)
}

// checkMessages parses the messages in p, and reports whether all are allowed.
func (c *Server) checkMessages(p []byte) bool {
	for len(p) > 0 {
		if c.rest > 0 {
			n := min(len(p), int(c.rest))
			p, c.rest = p[n:], c.rest-uint32(n)
			continue
		}
		n := copy(c.head[c.n:], p)
		p, c.n = p[n:], c.n+n
		if bytes.IndexByte(clientMessages, c.head[0]) < 0 {
			return false
		}
		if c.n < len(c.head) {
			continue
		}
		length := binary.BigEndian.Uint32(c.head[1:])
		if length < 4 {
			return false
		}
		c.n, c.rest = 0, length-4
	}
	return true
}
