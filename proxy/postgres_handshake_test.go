package proxy_test

import (
	"crypto/tls"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/postgres"
	"boxgate/proxy/proxytest"
)

// TestAttackLongHandshakeMessagesBeforeALogin: a database client that begins an overlong handshake message, directly or
// after an SSLRequest, loses the connection before the message is complete.
func TestAttackLongHandshakeMessagesBeforeALogin(t *testing.T) {
	t.Parallel()
	for what, direct := range map[string]bool{"direct TLS": true, "TLS on request": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, _, dst := pgRig(t, dbRule)
			c := proxytest.DialTo(t, r.Listen(dst))
			if !direct {
				_, _ = c.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47})
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			cfg := &tls.Config{ServerName: db, RootCAs: r.BoxCA.Pool(), MaxVersion: tls.VersionTLS12, NextProtos: []string{"postgresql"}}
			_ = tls.Client(&lies{Conn: c}, cfg).Handshake()
			r.Want("the end of the connection", func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
		})
	}
}

// longer returns a certificate chain with more bytes of additional certificates.
func longer(cert tls.Certificate, more int) tls.Certificate {
	cert.Certificate = slices.Clone(cert.Certificate)
	for n := 0; n < more; n += len(cert.Certificate[0]) {
		cert.Certificate = append(cert.Certificate, cert.Certificate[0])
	}
	return cert
}

// TestAttackDatabasesLongHandshakeMessages: a database server with a certificate message of 192 KiB is given up, at the
// login and when a query is cancelled; one of 24 KiB is accepted.
func TestAttackDatabasesLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	usual := s.config.Certificates[0]
	var shown atomic.Pointer[tls.Certificate]
	s.config.Certificates = nil
	s.config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown.Load(), nil }
	with := func(more int) {
		cert := longer(usual, more)
		shown.Store(&cert)
	}
	tooLong := func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") }
	with(192 << 10)
	_, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	refusedWith(t, err, "08001", "could not be verified")
	r.Want("the end of the login", tooLong)
	s.wantsNothing()
	with(24 << 10)
	c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	if err != nil {
		t.Fatal(err)
	}
	with(192 << 10)
	count := func() (n int) {
		for _, e := range r.Events.List() {
			if tooLong(e) {
				n++
			}
		}
		return n
	}
	before := count()
	_ = c.CancelRequest(t.Context())
	proxytest.Await(t, "the end of the request to cancel", func() bool { return count() > before })
	_ = c.Close(t.Context())
}

// TestAttackLoginThatDoesNotEnd: a server that sends 256 KiB of parameters is given up.
func TestAttackLoginThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	s.says256 = true
	_, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	refusedWith(t, err, "08001", "could not log in")
	if e := r.WantReason(name.ReasonUpstreamLogin); !strings.Contains(e.Error, "during the login") {
		t.Errorf("%+v", e)
	}
}

// TestConnectionsToDatabasesAreCharged: a login is charged for before the server is dialled, and a connection until it is
// closed.
func TestConnectionsToDatabasesAreCharged(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	most := int64(500 << 10) // enough for the client and its TLS, but not for a login
	budget := memory.New(64<<20, 64<<20)
	r.With(func(c *proxy.Config) { c.Memory = memory.New(64<<20, most) })
	if _, err := pgconn.ConnectConfig(t.Context(), psql(r, dst)); err == nil {
		t.Error("a login without memory for it")
	}
	r.WantReason(name.ReasonLimit)
	s.wantsNothing()
	r.With(func(c *proxy.Config) { c.Memory = budget })
	c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	if err != nil {
		t.Fatal(err)
	}
	proxytest.Await(t, "the charge for a connection", func() bool { return budget.InUse(memory.Upstreams) == postgres.LinkCost })
	_ = c.Close(t.Context())
	proxytest.Await(t, "it to be given back", func() bool { return budget.InUse(memory.Upstreams) == 0 })
}

// TestAttackLongKeyToCancelQueries: a server's key has at most 256 bytes, as the protocol requires, because one is stored
// for each connection.
func TestAttackLongKeyToCancelQueries(t *testing.T) {
	t.Parallel()
	for size, takes := range map[int]bool{256: true, 257: false} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			r, s, dst := pgRig(t, dbRule)
			s.secret = make([]byte, size)
			c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
			if takes != (err == nil) {
				t.Fatal(err)
			}
			if takes {
				_ = c.Close(t.Context())
				return
			}
			r.WantReason(name.ReasonUpstreamLogin)
		})
	}
}
