package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/certs"
	"boxgate/config"
	"boxgate/internal/lab"
)

// Origin is a web server of a test. It speaks only HTTP/1.1, keeps every byte it receives, and answers every request
// with 200.
type Origin struct {
	mu     sync.Mutex
	conns  []*originConn
	answer string // replaces the default response
}

// originConn holds the data received on one connection. taken counts the bytes already inspected.
type originConn struct {
	data      strings.Builder
	inspected int
}

// OriginName is the host name of an origin.
const OriginName = "origin.example.com"

// WithOrigin creates a CA for an origin. change makes the gateway's configuration trust it, and start starts the server
// in the world with that configuration.
func WithOrigin(t *testing.T) (change func(*config.Config), start func(*World) *Origin) {
	t.Helper()
	ca, err := certs.NewCA("origin")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "origin-ca.pem")
	if err := os.WriteFile(file, ca.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, OriginName)
	if err != nil {
		t.Fatal(err)
	}
	change = func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, file) }
	return change, func(w *World) *Origin {
		o := &Origin{}
		if err := w.Net.AddHost(OriginName, "198.51.100.77", "2001:db8:1::77"); err != nil {
			t.Fatal(err)
		}
		cfg := &tls.Config{GetCertificate: issued.GetCertificate, NextProtos: []string{"http/1.1"}}
		o.listen(t, w, "198.51.100.77:443", cfg)
		o.listen(t, w, "198.51.100.77:80", nil)
		return o
	}
}

// listen serves on an address of the internet, sharing the port with the servers that listen on every address.
func (o *Origin) listen(t *testing.T, w *World, at string, cfg *tls.Config) {
	t.Helper()
	var ln net.Listener
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	err := w.Net.Internet().Do(func() (err error) {
		ln, err = lc.Listen(context.Background(), "tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if cfg != nil {
		ln = tls.NewListener(ln, cfg)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go o.serve(c)
		}
	}()
}

// serve answers every request on a connection.
func (o *Origin) serve(c net.Conn) {
	defer c.Close()
	kept := &originConn{}
	o.mu.Lock()
	o.conns = append(o.conns, kept)
	o.mu.Unlock()
	buf, answered := make([]byte, 64<<10), 0
	for {
		n, err := c.Read(buf)
		o.mu.Lock()
		kept.data.Write(buf[:n])
		whole, answer := wholeRequests(kept.data.String()), o.answer
		o.mu.Unlock()
		if answer == "" {
			answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		}
		for ; answered < whole; answered++ {
			_, _ = io.WriteString(c, answer) // the next read notices a disconnected client
		}
		if err != nil {
			return
		}
	}
}

// Answers makes the origin answer every following request with these bytes.
func (o *Origin) Answers(with string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = with
}

// wholeRequests counts the complete requests, as a server would that trusts the first framing it finds.
func wholeRequests(data string) (n int) {
	for {
		head, rest, ok := strings.Cut(data, "\r\n\r\n")
		if !ok {
			return n
		}
		if strings.Contains(head, "\r\nTransfer-Encoding: chunked") {
			_, last, ended := strings.Cut("\r\n"+rest, "\r\n0\r\n")
			if _, rest, ok = strings.Cut("\r\n"+last, "\r\n\r\n"); !ended || !ok {
				return n
			}
		} else if _, length, found := strings.Cut(head, "\r\nContent-Length: "); found {
			size := 0
			if _, err := fmt.Sscanf(length, "%d", &size); err != nil || size > len(rest) {
				return n
			}
			rest = rest[size:]
		}
		data = rest
		n++
	}
}

// Received returns all bytes received since the last call, connection by connection.
func (o *Origin) Received() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all string
	for _, c := range o.conns {
		all += c.data.String()[c.inspected:]
		c.inspected = c.data.Len()
	}
	return all
}

// unpackedPostgres is the directory where `make postgres` unpacks the server.
const unpackedPostgres = "/var/cache/boxgate-postgres"

// nobody is the user that the server runs as, because it refuses to run as root.
const nobody = 65534

// Postgres is a PostgreSQL server with the users app and other and the database orders, see [World.ServePostgres]. By
// default it accepts only TLS connections with SCRAM authentication.
type Postgres struct {
	Host, Addr string
	Password   string           // of both users
	Cert       *tls.Certificate // nil: issued by the test CA for the host
	Plain      bool             // without TLS, with the password in plain text

	log *lab.SyncBuffer
}

// Log returns the server's log, which contains every connection and login.
func (p *Postgres) Log() string { return p.log.String() }

// ServePostgres adds a host to the internet and runs the server there until the end of the test.
func (w *World) ServePostgres(p Postgres) *Postgres {
	w.T.Helper()
	if err := w.Net.AddHost(p.Host, p.Addr); err != nil {
		w.T.Fatal(err)
	}
	if p.Cert == nil {
		cert, err := w.Net.Certificate(p.Host)
		if err != nil {
			w.T.Fatal(err)
		}
		p.Cert = cert
	}
	p.log = &lab.SyncBuffer{}
	p.start(w, p.install(w.T))
	return &p
}

// program returns a command for a program of the server, installed or unpacked.
func (*Postgres) program(t *testing.T, ctx context.Context, name string, args ...string) *exec.Cmd {
	t.Helper()
	for _, root := range []string{"", unpackedPostgres} {
		found, err := filepath.Glob(root + "/usr/lib/postgresql/*/bin/" + name)
		if err != nil || len(found) == 0 {
			continue
		}
		cmd := exec.CommandContext(ctx, found[len(found)-1], args...)
		libs, _ := filepath.Glob(unpackedPostgres + "/usr/lib/*-linux-gnu")
		cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "LD_LIBRARY_PATH=" + strings.Join(libs, ":")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	t.Fatal("the PostgreSQL server is missing: make postgres")
	return nil
}

// install creates the server's files and returns its data directory.
func (p *Postgres) install(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxgate-postgres-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	run := func(cmd *exec.Cmd, stdin string) {
		t.Helper()
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, Tail(string(out), 2000))
		}
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	run(p.program(t, t.Context(), "initdb", "-D", data, "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "--auth=reject"), "")
	for _, sql := range []string{"CREATE ROLE app LOGIN PASSWORD '" + p.Password + "'", "CREATE ROLE other LOGIN PASSWORD '" + p.Password + "'", "CREATE DATABASE orders OWNER app"} {
		run(p.program(t, t.Context(), "postgres", "--single", "-D", data, "postgres"), sql+"\n")
	}
	for name, content := range p.files(t) {
		path := filepath.Join(data, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// files returns the certificate, its key, and the authentication rules.
func (p *Postgres) files(t *testing.T) map[string][]byte {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(p.Cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	admits := "hostssl all app,other 0.0.0.0/0 scram-sha-256\n"
	if p.Plain {
		admits = "host all app,other 0.0.0.0/0 password\n"
	}
	return map[string][]byte{
		"server.crt":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert.Certificate[0]}),
		"server.key":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"pg_hba.conf": []byte(admits),
	}
}

// start runs the server on the internet.
func (p *Postgres) start(w *World, data string) {
	t := w.T
	t.Helper()
	secure := "ssl=on"
	if p.Plain {
		secure = "ssl=off"
	}
	server := p.program(t, context.Background(), "postgres", "-D", data, "-h", p.Addr, "-c", "unix_socket_directories=", "-c", secure,
		"-c", "log_connections=on", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=20")
	server.SysProcAttr.Pdeathsig = 0 // sent when the thread ends, which happens too early
	server.Stdout, server.Stderr = p.log, p.log
	if err := w.Net.Internet().Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		_ = server.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), ExecMost)
	defer cancel()
	if err := p.log.Await(ctx, "ready to accept connections"); err != nil {
		t.Fatalf("%v: %s", err, p.log.String())
	}
}
