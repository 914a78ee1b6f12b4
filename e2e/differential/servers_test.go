package differential

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// server starts the server of a row. Servers in the test process listen on 443. Programs listen on programPort of an
// IPv4 address, because the internet's usual servers use their ports on every address and do not share them with other
// processes.
type server struct {
	port  uint16 // 0: 443
	v4    bool   // listens on an IPv4 address only
	start func(*site)
}

const programPort = 9443

// site is the place of a row's server.
type site struct {
	*harness.World
	t      *testing.T
	issuer *issuer
	row    row
	host   string
	port   uint16
	alive  string      // name of the addresses on which it listens
	until  func() bool // reports whether it listens; nil: it already does
	jvm    *jvm        // of all
}

// chain returns the certificate chain of the server.
func (s *site) chain(edit func(*certSpec)) tls.Certificate {
	if s.row.cert != nil {
		edit = s.row.cert
	}
	return s.issuer.chain(s.host, edit)
}

// at makes a server listen on another port.
func (v server) at(port uint16) server { v.port = port; return v }

// conns passes each connection to handle, behind TLS unless config is nil.
func conns(config *tls.Config, handle func(net.Conn)) server {
	return server{start: func(s *site) {
		config := config.Clone() // the table is shared by concurrent labs; nil stays nil
		if config != nil {
			config.Certificates = []tls.Certificate{s.chain(nil)}
		}
		err := s.Net.ServeConns(s.alive, s.port, func(c net.Conn) {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(harness.ExecMost))
			if config != nil {
				c = tls.Server(c, config)
				defer c.Close()
			}
			handle(c)
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}}
}

var http1 = &tls.Config{NextProtos: []string{"http/1.1"}}

// respondsWith answers each request with a text. It closes the connection if the text has no length or requests it.
func respondsWith(text string) server { return conns(http1, answering(text)) }

// fine returns a server that answers 200 with fields and a body.
func fine(fields, body string) server {
	return respondsWith("HTTP/1.1 200 OK\r\n" + fields + "\r\n" + body)
}

func answering(text string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, err = io.WriteString(c, text)
			lower := strings.ToLower(text)
			if err != nil || !strings.Contains(lower, "\r\ncontent-length:") || strings.Contains(lower, "\r\nconnection: close") {
				return
			}
		}
	}
}

// okay is the response of servers that are tested for other properties.
const okay = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

// speaks returns a server that answers over TLS with a configuration.
func speaks(config *tls.Config) server { return conns(config, answering(okay)) }

// shows returns a server with an edited certificate.
func shows(edit func(*certSpec)) server {
	return server{start: func(s *site) {
		s.row.cert = edit
		respondsWith(okay).start(s)
	}}
}

// handles returns a net/http server with the given protocols, or both.
func handles(handle http.HandlerFunc, protocols ...string) server {
	return server{start: func(s *site) {
		config := &tls.Config{NextProtos: protocols}
		if err := s.Net.ServeTLS(s.alive, s.port, handle, config); err != nil {
			s.t.Fatal(err)
		}
	}}
}

// program is a running program.
type program struct {
	in io.Writer

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// runs starts a program on the internet, which prints a word when it listens.
func (s *site) runs(dir, word, name string, args ...string) *program {
	s.t.Helper()
	p := &program{}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, p, p
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	p.in = in
	if err := s.Net.Internet().Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("%s printed:\n%s", s.row.name, harness.Tail(p.text(), 2000))
		}
	})
	s.until = func() bool { return strings.Contains(p.text(), word) }
	return p
}

// address returns the address of a program.
func (s *site) address() string {
	return net.JoinHostPort(s.V4(s.alive).String(), "9443")
}

// openssl runs openssl s_server with additional arguments.
func openssl(args string) server {
	return server{programPort, true, func(s *site) {
		chain := s.chain(key("rsa2048"))
		s.openssl(pemFile(s.t, chain), "-cert_chain "+pemFile(s.t, tls.Certificate{Certificate: chain.Certificate[1:]})+" "+args)
	}}
}

// odd runs openssl s_server with a certificate made by openssl: arguments for the request and for the signature.
func odd(request, signature string) server {
	return server{programPort, true, func(s *site) {
		s.openssl(s.issuer.odd(s.host, request, signature), "")
	}}
}

func (s *site) openssl(file, args string) {
	s.t.Helper()
	dir := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "page"), []byte(okay), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.runs(dir, "ACCEPT", "openssl", append([]string{"s_server", "-HTTP", "-accept", s.address(), "-cert", file}, strings.Fields(args)...)...)
}

// python runs testdata/server.py in a mode.
func python(mode string) server {
	return server{programPort, true, func(s *site) {
		script, err := filepath.Abs("testdata/server.py")
		if err != nil {
			s.t.Fatal(err)
		}
		s.runs(s.t.TempDir(), "ready", "python3", script, s.V4(s.alive).String(), "9443", pemFile(s.t, s.chain(nil)), mode)
	}}
}

// smallHello answers clients whose ClientHello fits a record of at most 1,400 bytes, and resets others.
func smallHello() server {
	return server{start: func(s *site) {
		config := &tls.Config{NextProtos: http1.NextProtos, Certificates: []tls.Certificate{s.chain(nil)}}
		err := s.Net.ServeConns(s.alive, s.port, func(c net.Conn) {
			defer c.Close()
			head := make([]byte, 5)
			if _, err := io.ReadFull(c, head); err != nil {
				return
			}
			if int(head[3])<<8|int(head[4]) > 1400 {
				testnet.Reset(c)
				return
			}
			answering(okay)(tls.Server(replayed{c, io.MultiReader(bytes.NewReader(head), c)}, config))
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}}
}

// replayed is a connection some of whose bytes were already read.
type replayed struct {
	net.Conn
	in io.Reader
}

func (r replayed) Read(b []byte) (int, error) { return r.in.Read(b) }

// renegotiates requests another handshake with an optional client certificate after reading the request, like IIS and
// SAP.
func renegotiates() server {
	return server{programPort, true, func(s *site) {
		p := s.runs(s.t.TempDir(), "ACCEPT", "openssl", "s_server", "-accept", s.address(), "-cert", pemFile(s.t, s.chain(func(o *certSpec) { key("rsa2048")(o); byTheRoot(o) })), "-tls1_2", "-crlf")
		go func() {
			for n := 1; ; n++ { // connections arrive one after the other
				for _, step := range []struct{ seen, then string }{
					{"GET /", "R\n"}, {"SSL_do_handshake -> 1", "HTTP/1.1 200 OK\nContent-Length: 2\nConnection: close\n\nok"}, {"", "\nq\n"},
				} {
					for strings.Count(p.text(), step.seen) < n {
						select {
						case <-s.t.Context().Done():
							return
						case <-time.After(5 * time.Millisecond):
						}
					}
					_, _ = io.WriteString(p.in, step.then)
				}
			}
		}()
	}}
}
