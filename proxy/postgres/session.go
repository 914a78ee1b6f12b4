package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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
