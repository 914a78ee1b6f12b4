// Package pebbletest runs pebble, Let's Encrypt's ACME server for testing clients, for tests of this repository. go.mod
// pins it as a tool, so it is built from the module proxy and verified by go.sum.
package pebbletest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/certs"
)

// patience is a timeout with a large margin for busy machines.
const patience = 2 * time.Minute

// program builds pebble unless the build cache has it, and returns its path there.
var program = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "tool", "-n", "pebble")
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	return strings.TrimSpace(string(path)), err
})

// Options configure a pebble. With the zero value, validation of names served by a test fails.
type Options struct {
	IP                string // listen address; "": 127.0.0.1
	Dir               string // for its files, such as roots.pem; "": a temporary one
	Port              uint16 // of the ACME service, for tests in their own network namespace; 0: a free one
	HTTPPort, TLSPort uint16 // ports that validation connects to
	DNS               string // host:port of the nameserver used for validation
	Validity          time.Duration
	Accounts          map[string]string // external accounts and their keys in base64url; nil: not required
	OCSP              string            // URL of the OCSP responder in certificates
	Environment       []string
	// Run starts the process; nil: [exec.Cmd.Start].
	Run func(*exec.Cmd) error
	// Dial connects to pebble; nil: the default.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Pebble is one running ACME server.
type Pebble struct {
	Directory  string // the URL for clients
	RootsFile  string // file with the root of the server's own certificate
	Address    string // of the ACME service
	management string
	client     *http.Client
	log        *log
}

// log collects pebble's output.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Asked returns the number of requests received.
func (p *Pebble) Asked() int { return strings.Count(p.log.String(), "-> calling handler()") }

// Orders returns the number of orders requested.
func (p *Pebble) Orders() int {
	return strings.Count(p.log.String(), "/order-plz -> calling handler()")
}

// Start runs a pebble until the test ends.
func Start(t testing.TB, o Options) *Pebble {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatalf("pebble could not be built: %v", err)
	}
	if o.IP == "" {
		o.IP = "127.0.0.1"
	}
	if o.Run == nil {
		o.Run = (*exec.Cmd).Start
	}
	for range 5 { // another program may take a port between choice and use
		if p := start(t, path, o); p != nil {
			return p
		}
	}
	t.Fatal("pebble does not run")
	return nil
}

func start(t testing.TB, path string, o Options) *Pebble {
	t.Helper()
	dir := o.Dir
	if dir == "" {
		dir = t.TempDir()
	}
	port := freePort(t)
	if o.Port != 0 {
		port = strconv.Itoa(int(o.Port))
	}
	p := &Pebble{
		Address: net.JoinHostPort(o.IP, port), management: net.JoinHostPort(o.IP, freePort(t)), RootsFile: filepath.Join(dir, "roots.pem"), log: &log{},
	}
	p.Directory = "https://" + p.Address + "/dir"
	roots := writeCertificate(t, dir, p.RootsFile, o.IP)
	p.client = &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: o.Dial, DisableKeepAlives: true,
	}}
	config := filepath.Join(dir, "config.json")
	data, err := json.Marshal(map[string]any{"pebble": o.settings(dir, p)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-config", config, "-dnsserver", o.DNS)
	cmd.Env = append(append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0"), o.Environment...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := o.Run(cmd); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("pebble: %s", tail(p.log.String()))
		}
	})
	if !p.ready(exited) {
		return nil
	}
	return p
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

func (o *Options) settings(dir string, p *Pebble) map[string]any {
	return map[string]any{
		"listenAddress": p.Address, "managementListenAddress": p.management,
		"certificate": filepath.Join(dir, "cert.pem"), "privateKey": filepath.Join(dir, "key.pem"),
		"httpPort": o.HTTPPort, "tlsPort": o.TLSPort, "ocspResponderURL": o.OCSP, "keyAlgorithm": o.keyAlgorithm(),
		"externalAccountBindingRequired": o.Accounts != nil, "externalAccountMACKeys": o.Accounts,
		"retryAfter": map[string]int{"authz": 0, "order": 0},
		"profiles":   map[string]any{"default": map[string]any{"description": "test", "validityPeriod": int(o.Validity.Seconds())}},
	}
}

// keyAlgorithm returns the algorithm of the issuer's keys. Pebble exposes only RSA keys, which an OCSP responder needs.
func (o *Options) keyAlgorithm() string {
	if o.OCSP != "" {
		return "rsa"
	}
	return "ecdsa"
}

// ready waits until pebble answers, or reports false if it has exited.
func (p *Pebble) ready(exited <-chan struct{}) bool {
	for {
		if resp, err := p.client.Get(p.Directory); err == nil {
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		}
		select {
		case <-exited:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Management fetches a path from the management interface.
func (p *Pebble) Management(t testing.TB, path string) []byte {
	t.Helper()
	resp, err := p.client.Get("https://" + p.management + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("pebble's %s: %d %v", path, resp.StatusCode, err)
	}
	return data
}

// Roots returns the roots of the certificates that pebble issues.
func (p *Pebble) Roots(t testing.TB) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.Management(t, "/roots/0")) {
		t.Fatal("pebble has no root")
	}
	return pool
}

// freePort returns a port that is currently free.
func freePort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// writeCertificate makes the server's own certificate, and the file with its root.
func writeCertificate(t testing.TB, dir, rootsFile, name string) *x509.CertPool {
	t.Helper()
	ca, err := certs.NewCA("pebble's own server")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.ServerCertificate(name)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		filepath.Join(dir, "cert.pem"): {Type: "CERTIFICATE", Bytes: leaf.Certificate[0]},
		filepath.Join(dir, "key.pem"):  {Type: "PRIVATE KEY", Bytes: key},
		rootsFile:                      {Type: "CERTIFICATE", Bytes: ca.Certificate().Raw},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	return pool
}
