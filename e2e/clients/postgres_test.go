package clients

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	dbHost = "db.example.com"
	dbAddr = "198.51.100.151"
)

// TestPostgres runs the section of docs/credentials.md, and other uses of psql and pgx, allowed and denied, from a box
// without the password.
func TestPostgres(t *testing.T) {
	t.Parallel()
	const password = "canary-of-the-database-Qz7Qz7"
	w := harness.NewStopped(t, lab.Options{Change: withClients(t)})
	e := sectionOf(t, "PostgreSQL")
	files := t.TempDir()
	secret := filepath.Join(files, "orders-db.password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	configuration, err := os.ReadFile(w.Config)
	if err == nil {
		err = os.WriteFile(w.Config, append(configuration, strings.ReplaceAll(e.config, "/etc/boxgate", files)...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.ServePostgres(harness.Postgres{Host: dbHost, Addr: dbAddr, Password: password})
	if err := w.Net.AddHost("alias.example.com", dbAddr); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := []string{dbHost + ":5432", "alias.example.com:5432", "www.example.com:4444"}
	box := w.Create(map[string]any{"runtime": "clients", "attach_headers": e.rules, "network_policy": harness.Custom(names...)})
	p := &postgresBox{w, box}
	harness.Contains(t, w.MustSh(box, e.commands), "welcome")
	e2eLogin(p)
	p.refused()
	p.cancels()
	p.pgx()
	p.otherHosts(e)
	p.revoked(secret)
	events := p.log()
	for what, text := range map[string]string{"log": w.LogText(), "decisions": events, "box": w.MustSh(box, "env; set; cat /proc/self/environ; cat ~/.psql_history 2>/dev/null; true")} {
		if strings.Contains(text, password) {
			t.Errorf("the password is in the %s", what)
		}
	}
	if found := strings.Fields(harness.Output(w.Sh(box, strings.Replace(lab.SearchLine(password), " / ", " /workspace /tmp /var/tmp /run /etc ", 1)))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches in the box: %v", found)
	}
}

// sectionOf returns a section of docs/credentials.md.
func sectionOf(t *testing.T, service string) *example {
	t.Helper()
	for _, e := range readExamples(t) {
		if e.service == service {
			return e
		}
	}
	t.Fatalf("docs/credentials.md has no section %q", service)
	return nil
}

// postgresBox is the box of TestPostgres.
type postgresBox struct {
	*harness.World
	box string
}

// psql returns a command line of psql, with a worthless password.
func (p *postgresBox) psql(parameters, sql string) string {
	return `PGPASSWORD=none psql -X -At "host=` + dbHost + ` user=app dbname=orders connect_timeout=120 ` + parameters + `" -c "` + sql + `" 2>&1`
}

// verified are the parameters that make psql verify the gateway's certificate.
const verified = "sslmode=verify-full sslrootcert=$SSL_CERT_FILE"

// e2eLogin: the box logs in as the user of the rule, over TLS to the server, by every way in which clients begin.
func e2eLogin(p *postgresBox) {
	p.T.Helper()
	const who = "select current_user || '@' || current_database() || ' ' || ssl from pg_stat_ssl where pid = pg_backend_pid()"
	for _, parameters := range []string{verified, "sslmode=require", "sslmode=prefer", "sslmode=disable", "sslmode=disable application_name=x client_encoding=LATIN1"} {
		if got := p.MustSh(p.box, p.psql(parameters, who)); got != "app@orders true\n" {
			p.T.Errorf("%s: %q", parameters, got)
		}
	}
	p.MustSh(p.box, p.psql(verified, "create table items as select n from generate_series(1, 200000) n"))
	if got := p.MustSh(p.box, p.psql(verified, "copy items to stdout")+" | md5sum"); got != p.MustSh(p.box, "seq 200000 | md5sum") {
		p.T.Errorf("a table is copied as %q", got)
	}
	if got := p.MustSh(p.box, `seq 200000 | `+p.psql(verified, `\\copy items from stdin`)); got != "COPY 200000\n" {
		p.T.Errorf("%q", got)
	}
}

// refused: the gateway refuses another user or database with the server's messages.
func (p *postgresBox) refused() {
	p.T.Helper()
	for parameters, says := range map[string]string{
		"dbname=postgres": `FATAL:  the gateway logs in to database "orders"`, "user=other": `as user "app" only`,
		"replication=database": `"replication" is not passed on`, "options='-c work_mem=1MB'": `"options" is not passed on`,
	} {
		out, code := p.Sh(p.box, strings.Replace(p.psql(parameters, "select 1"), `"host`, `"sslmode=require host`, 1))
		if code != 2 || !strings.Contains(out, says) {
			p.T.Errorf("%s: exit %d: %s", parameters, code, out)
		}
	}
	p.Event(p.box, func(e audit.Event) bool {
		return e.Reason == name.ReasonHeaderRule && e.Verdict == policy.Deny && e.Rule == dbHost+":5432"
	})
}

// awaitSleep returns a line that waits until the server runs pg_sleep with a number.
func (p *postgresBox) awaitSleep(n string) string {
	return "until " + p.psql("sslmode=require", "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep("+n+")'") + " | grep -qx 1; do :; done"
}

// cancels: psql cancels its query when interrupted.
func (p *postgresBox) cancels() {
	p.T.Helper()
	out := p.MustSh(p.box, "("+p.psql(verified, "select pg_sleep(601)")+"; echo exit $?) & "+p.awaitSleep("601")+"; pkill -INT -x psql; wait")
	harness.Contains(p.T, out, "canceling statement due to user request")
}

// pgx: a program in the box with another implementation of the protocol.
func (p *postgresBox) pgx() {
	p.T.Helper()
	in := p.Intrude(p.box)
	p.MustSh(p.box, "getent ahosts "+dbHost)
	c, err := pgconn.ParseConfig("host=" + dbHost + " user=app dbname=orders password=none sslmode=disable")
	if err != nil {
		p.T.Fatal(err)
	}
	c.TLSConfig = &tls.Config{ServerName: dbHost, RootCAs: in.Roots}
	c.MaxProtocolVersion = "3.2" // not supported by this server
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{dbAddr}, nil }
	c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		return in.Connect(netip.MustParseAddrPort(dbAddr + ":5432"))
	}
	conn, err := pgconn.ConnectConfig(p.T.Context(), c)
	if err != nil {
		p.T.Fatal(err)
	}
	defer conn.Close(p.T.Context())
	got := conn.ExecParams(p.T.Context(), "select current_user || $1", [][]byte{[]byte("!")}, nil, nil, nil).Read()
	if got.Err != nil || len(got.Rows) != 1 || string(got.Rows[0][0]) != "app!" {
		p.T.Errorf("%+v", got)
	}
	// The process ID is the server's, and another connection can use it to end this one.
	own := conn.ExecParams(p.T.Context(), "select pg_backend_pid()", nil, nil, nil, nil).Read()
	pid := strconv.FormatUint(uint64(conn.PID()), 10)
	if own.Err != nil || len(own.Rows) != 1 || string(own.Rows[0][0]) != pid {
		p.T.Errorf("process %s, the server says %+v", pid, own)
	}
	if got := p.MustSh(p.box, p.psql(verified, "select pg_terminate_backend("+pid+")")); got != "t\n" {
		p.T.Errorf("pg_terminate_backend: %q", got)
	}
	var ended *pgconn.PgError
	if err := conn.ExecParams(p.T.Context(), "select pg_sleep(60)", nil, nil, nil, nil).Read().Err; !errors.As(err, &ended) || ended.Code != "57P01" {
		p.T.Errorf("a connection that was ended by its process: %v", err)
	}
}

// otherHosts: another host never gets the password, and the server cannot be reached by another name.
func (p *postgresBox) otherHosts(e *example) {
	p.T.Helper()
	p.Sh(p.box, strings.Replace(p.psql("port=4444 sslmode=prefer connect_timeout=2", "select 1"), dbHost, "www.example.com", 1))
	for _, r := range p.Net.Received("www.example.com", testnet.Any) {
		if bytes.Contains(r.First, []byte("canary")) {
			p.T.Errorf("another host received %q", r.First)
		}
	}
	alias := p.Create(map[string]any{"runtime": "clients", "attach_headers": e.rules, "network_policy": harness.Custom(dbHost+":5432", "alias.example.com:5432")})
	for _, parameters := range []string{"sslmode=require", "sslmode=disable"} {
		out, code := p.Sh(alias, strings.Replace(p.psql(parameters, "select 1"), dbHost, "alias.example.com", 1))
		if code == 0 || strings.Contains(out, "FATAL") {
			p.T.Errorf("by another name: exit %d: %s", code, out)
		}
	}
	p.Event(alias, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "alias.example.com" })
}

// revoked: a connection ends when its secret is revoked, and cannot be made without the secret.
func (p *postgresBox) revoked(secret string) {
	p.T.Helper()
	var out lab.SyncBuffer
	wait := p.Background(p.box, p.psql(verified, "select pg_sleep(602)"), &out)
	p.MustSh(p.box, p.awaitSleep("602"))
	if err := os.Remove(secret); err != nil {
		p.T.Fatal(err)
	}
	p.GatewayCommand("secret", "refresh", "orders-db")
	if code, err := wait(); err != nil || code == 0 {
		p.T.Errorf("exit %d, %v: %s", code, err, out.String())
	}
	p.Event(p.box, func(e audit.Event) bool {
		return e.Verdict == policy.Deny && e.Reason == name.ReasonSecretUnavailable
	})
	text, code := p.Sh(p.box, p.psql(verified, "select 1"))
	if code != 2 || !strings.Contains(text, "the secret with which the gateway logs in to "+dbHost+":5432 is not available") {
		p.T.Errorf("exit %d: %s", code, text)
	}
}

// log returns the decisions about the box, including the one that reports the login.
func (p *postgresBox) log() string {
	p.T.Helper()
	var lines strings.Builder
	p.Event(p.box, func(e audit.Event) bool {
		return e.Action == audit.ActionBroker && e.Login == "postgres://app@db.example.com:5432/orders" && e.Secret == "orders-db" && e.BytesIn > 0
	})
	for _, e := range p.Events(p.box) {
		lines.WriteString(audit.Line(e) + e.Error + "\n")
	}
	return lines.String()
}
