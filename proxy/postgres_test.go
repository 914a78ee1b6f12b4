package proxy_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/postgres"
	"boxgate/proxy/proxytest"
)

const (
	db         = "db.example.com"
	dbPort     = 5432
	dbPassword = "canary-of-the-database"
	dbRule     = `{"db.example.com:5432": {"postgres": {"user": "app", "database": "orders", "password": {"secret": "db"}, "auth": "password"}}}`
)

// pgServer is a server that requests the password in cleartext, inside TLS.
type pgServer struct {
	t       *testing.T
	config  *tls.Config
	wants   string          // the right password
	says    string          // error for a wrong password; "": quotes it
	newest  uint16          // minor version; 0: 3.0
	noKeys  bool            // no support for cancel requests
	says256 bool            // sends 256 KiB of parameters
	kept    chan<- net.Conn // receives its connections; may be nil
	secret  []byte          // its cancel key; nil: one that fits the version
	// iterations, if set, makes the server use SCRAM with this count.
	iterations string

	mu      sync.Mutex
	logins  []map[string]string // startup parameters, with the received password
	cancels []pgproto3.CancelRequest
	free    chan struct{} // closed when a query is cancelled
}

// pgRig is a rig with a server under a name that the box has resolved.
func pgRig(t *testing.T, rules string) (*proxytest.Rig, *pgServer, netip.AddrPort) {
	t.Helper()
	r := proxytest.New(t, proxytest.Allow(db+":5432"), proxytest.Patient)
	r.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"db": proxytest.Fixed(dbPassword)} })
	s := &pgServer{t: t, wants: dbPassword, free: make(chan struct{})}
	s.config = &tls.Config{Certificates: []tls.Certificate{r.Upstream.Certificate(t, db)}, NextProtos: []string{"postgresql"}}
	dst := r.Server(dbPort, s.serve)
	r.Names.Set(db, dst.Addr())
	r.Names.Grant(db, dst.Addr())
	r.Rules(proxytest.Allow(db+":5432"), rules)
	return r, s, dst
}

func (s *pgServer) serve(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return
	}
	if s.kept != nil {
		s.kept <- c
	}
	_, _ = c.Write([]byte{'S'})
	secure := tls.Server(c, s.config)
	b := pgproto3.NewBackend(secure, secure)
	first, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	switch first := first.(type) {
	case *pgproto3.CancelRequest:
		s.mu.Lock()
		s.cancels = append(s.cancels, *first)
		s.mu.Unlock()
		close(s.free)
	case *pgproto3.StartupMessage:
		if minor := uint16(first.ProtocolVersion); minor > s.newest {
			b.Send(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 3<<16 | uint32(s.newest)})
		}
		if s.login(b, first.Parameters) {
			s.answer(b)
		}
	}
}

func (s *pgServer) login(b *pgproto3.Backend, parameters map[string]string) bool {
	if s.iterations != "" {
		return s.scram(b, parameters)
	}
	b.Send(&pgproto3.AuthenticationCleartextPassword{})
	_ = b.Flush()
	_ = b.SetAuthType(pgproto3.AuthTypeCleartextPassword)
	m, err := b.Receive()
	given, ok := m.(*pgproto3.PasswordMessage)
	if err != nil || !ok {
		return false
	}
	parameters["password"] = given.Password
	s.mu.Lock()
	s.logins = append(s.logins, parameters)
	s.mu.Unlock()
	if given.Password != s.wants {
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: cmp.Or(s.says, "not with "+given.Password)})
		_ = b.Flush()
		return false
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "17.1"})
	for n := 0; s.says256 && n < 256; n++ {
		b.Send(&pgproto3.ParameterStatus{Name: fmt.Sprint("parameter ", n), Value: strings.Repeat("x", 1000)})
		if b.Flush() != nil {
			return false
		}
	}
	if !s.noKeys {
		b.Send(&pgproto3.BackendKeyData{ProcessID: 77, SecretKey: s.key()})
	}
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	b.Send(&pgproto3.NoticeResponse{Severity: "NOTICE", Code: "00000", Message: "early"}) // in the same segment
	return b.Flush() == nil
}

// key returns the cancel key, which is long in version 3.2.
func (s *pgServer) key() []byte {
	if s.secret != nil {
		return s.secret
	}
	if s.newest >= 2 {
		return []byte("the real key, which has 32 bytes")
	}
	return []byte("real")
}

// scram requests a SCRAM proof, and rejects every one.
func (s *pgServer) scram(b *pgproto3.Backend, parameters map[string]string) bool {
	b.Send(&pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}})
	_ = b.Flush()
	_ = b.SetAuthType(pgproto3.AuthTypeSASL)
	m, err := b.Receive()
	first, ok := m.(*pgproto3.SASLInitialResponse)
	if err != nil || !ok {
		return false
	}
	_, nonce, _ := strings.Cut(string(first.Data), "r=")
	b.Send(&pgproto3.AuthenticationSASLContinue{Data: []byte("r=" + nonce + "more,s=c2FsdA==,i=" + s.iterations)})
	_ = b.Flush()
	_ = b.SetAuthType(pgproto3.AuthTypeSASLContinue)
	proof, err := b.Receive() // or a Terminate, if the gateway gives up
	if _, ok := proof.(*pgproto3.SASLResponse); err == nil && ok {
		s.mu.Lock()
		s.logins = append(s.logins, parameters)
		s.mu.Unlock()
	}
	return false
}

func (s *pgServer) answer(b *pgproto3.Backend) {
	for {
		m, err := b.Receive()
		q, ok := m.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		if q.String == "wait" {
			<-s.free
			b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "57014", Message: "cancelled"})
		} else {
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(q.String))})
		}
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
	}
}

// wantsNothing fails the test if the server received a login.
func (s *pgServer) wantsNothing() {
	s.t.Helper()
	if got := s.seen(); len(got) > 0 {
		s.t.Errorf("the server was sent %v", got)
	}
}

func (s *pgServer) seen() []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.logins)
}

// psql returns the configuration of a client in the box, which has a dummy password.
func psql(r *proxytest.Rig, dst netip.AddrPort, change ...func(*pgconn.Config)) *pgconn.Config {
	r.T.Helper()
	c, err := pgconn.ParseConfig("host=" + db + " user=app database=orders password=dummy sslmode=disable")
	if err != nil {
		r.T.Fatal(err)
	}
	c.TLSConfig = &tls.Config{ServerName: db, RootCAs: r.BoxCA.Pool()}
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{dst.Addr().String()}, nil }
	at := r.Listen(dst)
	c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return proxytest.TryDial(r.T, at) }
	for _, f := range change {
		f(c)
	}
	return c
}

func refusedWith(t *testing.T, err error, code, text string) {
	t.Helper()
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != code || !strings.Contains(refused.Message, text) || strings.Contains(err.Error(), dbPassword) {
		t.Errorf("%v; want %s: %s", err, code, text)
	}
}

// TestPostgresLogin: the server receives the password, which the box does not have, for every way in which a client may
// begin. The events do not contain it.
func TestPostgresLogin(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pgconn.Config){
		"TLS":        func(*pgconn.Config) {},
		"direct TLS": func(c *pgconn.Config) { c.SSLNegotiation, c.TLSConfig.NextProtos = "direct", []string{"postgresql"} },
		"plain":      func(c *pgconn.Config) { c.TLSConfig = nil },
		"version 3.2": func(c *pgconn.Config) {
			c.MaxProtocolVersion = "3.2"
			c.RuntimeParams = map[string]string{"application_name": "x", "TimeZone": "UTC"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s, dst := pgRig(t, dbRule)
			c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst, change))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := c.Exec(t.Context(), "hello").ReadAll(); err != nil || len(got) != 1 || got[0].CommandTag.String() != "HELLO" {
				t.Errorf("%v, %v", got, err)
			}
			if v := c.ParameterStatus("server_version"); v != "17.1" || c.PID() != 77 || bytes.Equal(c.SecretKey(), s.key()) {
				t.Errorf("version %q, process %d", v, c.PID())
			}
			_ = c.Close(t.Context())
			if got := s.seen(); len(got) != 1 || got[0]["password"] != dbPassword || got[0]["user"] != "app" || got[0]["database"] != "orders" {
				t.Errorf("%v", got)
			}
			e := r.Want("the end", func(e audit.Event) bool { return e.Action == audit.ActionBroker && e.Phase != audit.PhaseOpen })
			if e.Rule != db+":5432" || e.Login != "postgres://app@db.example.com:5432/orders" || e.Secret != "db" || e.Name != db || e.Addr != dst.Addr() || e.BytesOut == 0 {
				t.Errorf("%+v", e)
			}
			if strings.Contains(fmt.Sprintf("%+v", r.Events.List()), dbPassword) {
				t.Error("the password is in the events")
			}
		})
	}
}

// TestPostgresRefusals: a client with another user, database or parameter is refused in PostgreSQL's form, and the server
// is not contacted.
func TestPostgresRefusals(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	for label, c := range map[string]struct {
		change     func(*pgconn.Config)
		code, text string
		reason     name.Reason
	}{
		"another user":      {func(c *pgconn.Config) { c.User = "postgres" }, "28000", `as user "app" only`, name.ReasonHeaderRule},
		"another database":  {func(c *pgconn.Config) { c.Database = "postgres" }, "28000", `database "orders"`, name.ReasonHeaderRule},
		"replication":       {func(c *pgconn.Config) { c.RuntimeParams = map[string]string{"replication": "true"} }, "0A000", "replication", name.ReasonHeaderRule},
		"options":           {func(c *pgconn.Config) { c.RuntimeParams = map[string]string{"options": "-c x=y"} }, "0A000", "options", name.ReasonHeaderRule},
		"user in capitals":  {func(c *pgconn.Config) { c.RuntimeParams = map[string]string{"USER": "postgres"} }, "0A000", "USER", name.ReasonHeaderRule},
		"session authority": {func(c *pgconn.Config) { c.RuntimeParams = map[string]string{"role": "postgres"} }, "0A000", "role", name.ReasonHeaderRule},
	} {
		t.Run(label, func(t *testing.T) {
			_, err := pgconn.ConnectConfig(t.Context(), psql(r, dst, c.change))
			refusedWith(t, err, c.code, c.text)
			r.WantReason(c.reason)
		})
	}
	s.wantsNothing()
}

// TestPostgresFailures: if the server or the secret fails, the box receives a readable error, which never contains the
// secret.
func TestPostgresFailures(t *testing.T) {
	t.Parallel()
	connect := func(t *testing.T, r *proxytest.Rig, dst netip.AddrPort) error {
		_, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
		return err
	}
	t.Run("refused by the server", func(t *testing.T) {
		t.Parallel()
		r, s, dst := pgRig(t, dbRule)
		s.wants = "another"
		refusedWith(t, connect(t, r, dst), "28P01", "contains the password")
		if e := r.WantReason(name.ReasonUpstreamLogin); strings.Contains(e.Error, dbPassword) {
			t.Errorf("%+v", e)
		}
	})
	t.Run("refused by the server, which says nothing of it", func(t *testing.T) {
		t.Parallel()
		r, s, dst := pgRig(t, dbRule)
		s.wants, s.says = "another", `role "app" is not permitted to log in`
		refusedWith(t, connect(t, r, dst), "28P01", s.says)
	})
	t.Run("a weaker way than the rule allows", func(t *testing.T) {
		t.Parallel()
		r, s, dst := pgRig(t, strings.Replace(dbRule, `, "auth": "password"`, "", 1))
		refusedWith(t, connect(t, r, dst), "08001", "could not log in")
		r.WantReason(name.ReasonUpstreamLogin)
		s.wantsNothing()
	})
	t.Run("the certificate of another", func(t *testing.T) {
		t.Parallel()
		r, s, dst := pgRig(t, dbRule)
		s.config.Certificates = []tls.Certificate{r.Upstream.Certificate(t, "other.example.com")}
		refusedWith(t, connect(t, r, dst), "08001", "could not be verified")
		r.WantReason(name.ReasonUpstreamTLS)
		s.wantsNothing()
	})
	t.Run("no secret", func(t *testing.T) {
		t.Parallel()
		r, s, dst := pgRig(t, dbRule)
		r.With(func(c *proxy.Config) {
			c.Secrets = proxytest.Sources{"db": func(context.Context) (string, error) { return "", errors.New("vault is sealed") }}
		})
		refusedWith(t, connect(t, r, dst), "58000", "not available")
		if e := r.WantReason(name.ReasonSecretUnavailable); !strings.Contains(e.Error, "vault is sealed") {
			t.Errorf("%+v", e)
		}
		s.wantsNothing()
	})
}

// TestAttackCostlyPostgresProof: a server with a password that is costly to prove receives no proof.
func TestAttackCostlyPostgresProof(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	s.iterations = "10000000"
	_, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	refusedWith(t, err, "08001", "could not log in")
	if e := r.WantReason(name.ReasonUpstreamLogin); !strings.Contains(e.Error, "10000000 iterations") {
		t.Errorf("%+v", e)
	}
	s.wantsNothing()
}

// TestAttackFloodOfLogins: a box that exceeds its rate of logins is refused before the server is contacted.
func TestAttackFloodOfLogins(t *testing.T) {
	t.Parallel()
	r, s, dst := pgRig(t, dbRule)
	logins := r.Usages.Of(r.Box).Logins
	burst := logins.Burst()
	logins.SetBurst(0) // as if the burst had been used, for good
	if _, err := pgconn.ConnectConfig(t.Context(), psql(r, dst)); err == nil {
		t.Error("a login beyond the limit")
	}
	r.WantReason(name.ReasonLimit)
	s.wantsNothing()
	logins.SetBurst(burst)
	c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close(t.Context())
}

// TestPostgresOtherWays: only the login reaches the server's host and port: no other protocol, no address without the name,
// and no name that is one of several.
func TestPostgresOtherWays(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		prepare func(*proxytest.Rig, netip.Addr)
		say     string
		reason  name.Reason
	}{
		"a request":                {nil, "GET / HTTP/1.1\r\nHost: db.example.com:5432\r\nConnection: close\r\n\r\n", name.ReasonProtocol},
		"SSH":                      {nil, "SSH-2.0-x\r\n", name.ReasonProtocol},
		"version 2":                {nil, "\x00\x00\x00\x10\x00\x02\x00\x00user\x00a\x00\x00", name.ReasonProtocol},
		"GSSAPI twice":             {nil, strings.Repeat("\x00\x00\x00\x08\x04\xd2\x16\x30", 2), name.ReasonProtocol},
		"a key of no one":          {nil, "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x4dreal", name.ReasonHeaderRule},
		"a name that was not told": {func(r *proxytest.Rig, _ netip.Addr) { r.Names.Grant(db) }, "\x00\x00\x00\x08\x04\xd2\x16\x2f", name.ReasonNotAllowed},
		"two names with logins": {func(r *proxytest.Rig, a netip.Addr) {
			r.Names.Grant("other.example.com", a)
			r.Rules(proxytest.Allow(db+":5432"), strings.TrimSuffix(dbRule, "}")+", "+strings.Replace(dbRule[1:], "db.example.com", "other.example.com", 1))
		}, "\x00\x00\x00\x08\x04\xd2\x16\x2f", name.ReasonNoName},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s, dst := pgRig(t, dbRule)
			if way.prepare != nil {
				way.prepare(r, dst.Addr())
			}
			c := r.Dial(dst)
			_, _ = io.WriteString(c, way.say)
			_, _ = io.Copy(io.Discard, c)
			r.WantReason(way.reason)
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.logins)+len(s.cancels) > 0 {
				t.Error("the server was reached")
			}
		})
	}
}

// TestPostgresCancel: a box cancels its own queries with the key that it received, and with no other, in every version of
// the protocol.
func TestPostgresCancel(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]struct {
		client string
		newest uint16
		length int // of the box's key
	}{
		"3.0": {"3.0", 0, 4}, "3.2": {"3.2", 2, 32}, "3.2 to an older server": {"3.2", 0, 4}, "3.0 to a newer server": {"3.0", 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s, dst := pgRig(t, dbRule)
			s.newest = v.newest
			c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst, func(c *pgconn.Config) { c.MaxProtocolVersion = v.client }))
			if err != nil {
				t.Fatal(err)
			}
			if c.PID() != 77 || len(c.SecretKey()) != v.length {
				t.Errorf("process %d, key %q", c.PID(), c.SecretKey())
			}
			done := make(chan error, 1)
			go func() {
				_, err := c.Exec(t.Context(), "wait").ReadAll()
				done <- err
			}()
			if err := c.CancelRequest(t.Context()); err != nil {
				t.Fatal(err)
			}
			refusedWith(t, <-done, "57014", "cancelled")
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.cancels) != 1 || s.cancels[0].ProcessID != 77 || string(s.cancels[0].SecretKey) != string(s.key()) {
				t.Errorf("%+v", s.cancels)
			}
		})
	}
}

// TestPostgresVersions: the box receives a version that libpq accepts, and no key if the server has none.
func TestPostgresVersions(t *testing.T) {
	t.Parallel()
	for asked, want := range map[uint32]string{
		3 << 16: "", 3<<16 | 1: "v\x00\x00\x00\x0c\x00\x03\x00\x00\x00\x00\x00\x00", 3<<16 | 2: "", 3<<16 | 9999: "v\x00\x00\x00\x0c\x00\x03\x00\x02\x00\x00\x00\x00",
	} {
		t.Run(fmt.Sprintf("%x", asked), func(t *testing.T) {
			t.Parallel()
			r, s, dst := pgRig(t, dbRule)
			s.newest, s.noKeys = 2, true
			c, err := proxytest.TryDial(r.T, r.Listen(dst))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			body := binary.BigEndian.AppendUint32(nil, asked)
			body = append(body, "user\x00app\x00database\x00orders\x00\x00"...)
			if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))), body...)); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for !bytes.HasSuffix(got, []byte("Z\x00\x00\x00\x05I")) {
				one := make([]byte, 1)
				if _, err := io.ReadFull(c, one); err != nil {
					t.Fatalf("%q, %v", got, err)
				}
				got = append(got, one...)
			}
			if !bytes.HasPrefix(got, []byte(want+"R\x00\x00\x00\x08")) || bytes.Contains(got, []byte("K\x00\x00\x00")) {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestPostgresIsCut: a connection is cut when its secret is revoked, its host is denied, or its rule is changed or removed.
func TestPostgresIsCut(t *testing.T) {
	t.Parallel()
	for label, cut := range map[string]struct {
		by     func(*proxytest.Rig)
		reason name.Reason
	}{
		"revoked": {func(r *proxytest.Rig) { r.Proxy.Revoke("db") }, name.ReasonSecretUnavailable},
		"denied":  {func(r *proxytest.Rig) { r.Rules(proxytest.Allow("x.example"), dbRule); r.Proxy.Recheck(r.Box.ID) }, name.ReasonNotAllowed},
		"no rule": {func(r *proxytest.Rig) { r.Rules(proxytest.Allow(db+":5432"), "{}"); r.Proxy.Recheck(r.Box.ID) }, name.ReasonPolicyChanged},
		"new rule": {func(r *proxytest.Rig) {
			r.Rules(proxytest.Allow(db+":5432"), strings.Replace(dbRule, "orders", "bills", 1))
			r.Proxy.Recheck(r.Box.ID)
		}, name.ReasonPolicyChanged},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			r, _, dst := pgRig(t, dbRule)
			c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
			if err != nil {
				t.Fatal(err)
			}
			cut.by(r)
			if _, err := c.Exec(t.Context(), "hello").ReadAll(); err == nil {
				t.Error("the connection is not cut")
			}
			r.Want("the cut", func(e audit.Event) bool { return e.Verdict == policy.Deny && exchangeReason(e.Reason, cut.reason) })
		})
	}
}

// exchangeReason reports whether a cut was recorded for the reason, or as a general change of the policy.
func exchangeReason(got, want name.Reason) bool {
	return got == want || want == name.ReasonNotAllowed && got == name.ReasonPolicyChanged
}

// TestPostgresMessages: a second login after the first is not forwarded.
func TestPostgresMessages(t *testing.T) {
	t.Parallel()
	for name, say := range map[string][]byte{
		"a password":       mustEncode(&pgproto3.PasswordMessage{Password: "x"}),
		"a startup packet": mustEncode(&pgproto3.StartupMessage{ProtocolVersion: 3 << 16, Parameters: map[string]string{"user": "postgres"}}),
		"no length":        []byte("Q\x00\x00\x00\x03"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _, dst := pgRig(t, dbRule)
			c, err := pgconn.ConnectConfig(t.Context(), psql(r, dst))
			if err != nil {
				t.Fatal(err)
			}
			taken, err := c.Hijack()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = taken.Conn.Write(say)
			_ = taken.Conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, taken.Conn); errors.Is(err, context.DeadlineExceeded) {
				t.Error("the connection is not cut")
			}
			r.Want("the message", func(e audit.Event) bool { return strings.Contains(e.Error, "not allowed after the login") })
		})
	}
}

func mustEncode(m pgproto3.FrontendMessage) []byte {
	b, err := m.Encode(nil)
	if err != nil {
		panic(err)
	}
	return b
}

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
