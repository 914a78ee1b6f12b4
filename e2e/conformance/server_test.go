package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/certs"
	"boxgate/config"
	"boxgate/conformance"
	"boxgate/conformance/h2connect"
	"boxgate/e2e/harness"
)

const (
	suiteHost = "suite.example.com"
	suiteAddr = "198.51.100.78:443"

	directly = "direct"
	through  = "through the gateway"
)

// The reference server for WebSockets over HTTP/2 offers extended CONNECT. The gateway is started with its default
// settings.
func init() { h2connect.Restore() }

// fullSuites selects the full suites, as in `make conformance`.
var fullSuites = os.Getenv("CONFORMANCE_FULL") != ""

// suiteWorld is a world with a box that may reach one host, where a suite's server runs and the gateway sets a header.
// Suites reach it from inside the box and, for comparison, directly.
type suiteWorld struct {
	*harness.Intruder
	cert  tls.Certificate // of the host
	roots map[string]string
}

// newSuiteWorld makes the world, its box and the certificate of the host.
func newSuiteWorld(t *testing.T) *suiteWorld {
	t.Helper()
	ca, err := certs.NewCA("suite")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	roots := map[string]string{directly: filepath.Join(dir, "host-ca.pem"), through: filepath.Join(dir, "box-ca.pem")}
	if err := os.WriteFile(roots[directly], ca.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, suiteHost, "*."+suiteHost)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := issued.GetCertificate(&tls.ClientHelloInfo{ServerName: suiteHost})
	if err != nil {
		t.Fatal(err)
	}
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, roots[directly])
		c.Log.Level = "info"
	})
	if err := w.Net.AddHost(suiteHost, strings.TrimSuffix(suiteAddr, ":443")); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{"X-Api-Key": harness.Canary}
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom(suiteHost, "*."+suiteHost),
		"attach_headers": map[string]any{suiteHost: keys, "*." + suiteHost: keys},
	}))
	out, code := w.GatewayCommand("ca", "--box", in.Box)
	if code != 0 {
		t.Fatal(out)
	}
	if err := os.WriteFile(roots[through], []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return &suiteWorld{Intruder: in, cert: *cert, roots: roots}
}

// listen listens at the host's address. The servers of the test internet, which listen on every address, share the port.
func (s *suiteWorld) listen() net.Listener {
	s.T.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	var ln net.Listener
	err := s.Net.Internet().Do(func() (err error) {
		ln, err = lc.Listen(context.Background(), "tcp", suiteAddr)
		return err
	})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { ln.Close() })
	return ln
}

// run runs a suite's client by a way.
func (s *suiteWorld) run(suite, way string) conformance.Run {
	s.T.Helper()
	target := conformance.Target{Host: suiteHost, DNS: s.Net.DNSServers()[0], Roots: s.roots[way], Full: fullSuites}
	start := s.Net.Internet().Start
	if way == through {
		target.DNS = s.DNS
		start = func(cmd *exec.Cmd) error { return s.InNetNS(cmd.Start) }
	}
	results, err := conformance.Client(s.T.Context(), suite, target, s.T.TempDir(), start)
	if err != nil {
		s.T.Fatalf("%s: %v", way, err)
	}
	return conformance.Run{Way: way, Results: results}
}

// report prints the table of a suite if requested.
func report(t *testing.T, suite string, runs ...conformance.Run) {
	t.Helper()
	var table strings.Builder
	if err := conformance.Table(&table, suite, runs...); err != nil {
		t.Fatal(err)
	}
	if fullSuites {
		fmt.Printf("\n%s\n", table.String())
		return
	}
	t.Log("\n" + table.String())
}

// TestConformanceHTTP2Server runs h2spec against the interceptor and, for comparison, against the Go server behind it.
// The interceptor must pass every case; Go's server is known to fail some.
func TestConformanceHTTP2Server(t *testing.T) {
	t.Parallel()
	s := newSuiteWorld(t)
	serveHTTP(t, tls.NewListener(s.listen(), &tls.Config{Certificates: []tls.Certificate{s.cert}, NextProtos: []string{"h2", "http/1.1"}}),
		conformance.HTTP2Handler())
	ours := s.run("h2spec", through)
	runs := []conformance.Run{ours}
	if fullSuites {
		runs = append(runs, s.run("h2spec", directly))
	}
	report(t, "h2spec, HTTP/2 server", runs...)
	if n := len(ours.Results); n != 146 {
		t.Errorf("h2spec had %d cases", n)
	}
	for _, r := range ours.Except() {
		t.Errorf("%s %s: %s %s", r.Case, r.Title, r.Outcome, r.Detail)
	}
}

// TestConformanceGRPC runs grpc-go's interop client and server through the interceptor and directly.
func TestConformanceGRPC(t *testing.T) {
	t.Parallel()
	s := newSuiteWorld(t)
	server := conformance.ServeGRPC(s.listen(), s.cert, "x-api-key", harness.Canary)
	t.Cleanup(server.Stop)
	direct := s.run("grpc", directly)
	if _, injected := server.Calls(); injected != 0 {
		t.Errorf("%d direct calls had the header", injected)
	}
	before, _ := server.Calls()
	ours := s.run("grpc", through)
	report(t, "gRPC interop", direct, ours)
	if all, injected := server.Calls(); all-before != injected || injected == 0 {
		t.Errorf("%d of %d calls through the gateway had the header it sets", injected, all-before)
	}
	if len(ours.Results) < 22 {
		t.Errorf("there were %d cases", len(ours.Results))
	}
	for _, d := range conformance.Differences(direct, ours) {
		t.Errorf("direct and through the gateway differ: %s", d)
	}
	for _, r := range ours.Except() {
		t.Errorf("%s: %s %s", r.Case, r.Outcome, r.Detail)
	}
}

// serveHTTP serves over TLS until the test ends.
func serveHTTP(t *testing.T, ln net.Listener, handler http.Handler) {
	t.Helper()
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(ln) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
}

// rootsOf reads a file of certificates to trust.
func rootsOf(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}

// TestConformanceWebSocket runs the WebSocket cases through the interceptor, opened by an upgrade and by an extended
// CONNECT, and directly. The server's behaviour must be the same, including close codes.
func TestConformanceWebSocket(t *testing.T) {
	t.Parallel()
	s := newSuiteWorld(t)
	serveHTTP(t, tls.NewListener(s.listen(), &tls.Config{Certificates: []tls.Certificate{s.cert}, NextProtos: []string{"h2", "http/1.1"}}),
		conformance.WebSocketHandler())
	for _, suite := range []string{"websocket over HTTP/1.1", "websocket over HTTP/2"} {
		direct, ours := s.run(suite, directly), s.run(suite, through)
		report(t, suite, direct, ours)
		if n := len(ours.Results); n != 517 {
			t.Errorf("there were %d cases", n)
		}
		for _, d := range conformance.Differences(direct, ours) {
			t.Errorf("%s, direct and through the gateway differ: %s", suite, d)
		}
		for _, r := range ours.Except() {
			if r.Outcome != conformance.Informational {
				t.Errorf("%s: %s %s %s", r.Case, r.Title, r.Outcome, r.Seen)
			}
		}
	}
}
