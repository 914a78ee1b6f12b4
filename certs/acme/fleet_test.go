package acme

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/certs/acme/pebbletest"
	"boxgate/fleet"
	"boxgate/fleet/certstore"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/member"
	"boxgate/policy/name"
)

// hostVariable has the [fleetHost] of a process of this test binary: challenges in certmagic's memory belong to the process.
const hostVariable = "ACME_TEST_FLEET_HOST"

// fleetHost describes a host of a fleet.
type fleetHost struct {
	ID, Endpoint, Cache, Directory, Roots string
	Served                                []string
	DNS                                   string // nameserver of the wildcard; empty: HTTP-01
}

// addresses are the listeners of a host.
type addresses struct{ HTTP, HTTPS string }

var fleetKeys = fleet.KeysOf("test")

const fleetFounding = "0123456789abcdef"

// runHost runs the host that a text describes.
func runHost(text string) error {
	var h fleetHost
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	return h.serve()
}

// serve runs a host until its standard input ends.
func (h fleetHost) serve() error {
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{h.Endpoint}})
	if err != nil {
		return err
	}
	session, err := member.New(member.Config{Client: client, Keys: fleetKeys, Host: h.ID, Founding: fleetFounding, Key: []byte(h.ID), Presence: fleet.Presence{Instance: h.ID}, TTL: 2 * time.Second, Log: zap.NewNop()})
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = session.Start(start) // without etcd it starts later
	go session.Run(context.Background())
	files, err := NewFiles(h.Cache)
	if err != nil {
		return err
	}
	store, err := certstore.New(certstore.Config{
		Client: client, Keys: fleetKeys, Founding: fleetFounding, Guard: session.Guard, Cache: files, TTL: 2 * time.Second, Log: zap.NewNop(),
		Authority: func(context.Context) (name.Secret, error) { return name.NewSecret("the authority's key"), nil },
	})
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	secured, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m, err := h.manager(store, plain.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(plain, challenges(m)) }()
	go serveTLS(secured, m)
	go m.Run(context.Background())
	if err := json.NewEncoder(os.Stdout).Encode(addresses{plain.Addr().String(), secured.Addr().String()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (h fleetHost) manager(store *certstore.Store, at netip.AddrPort) (*Manager, error) {
	domain, err := name.Parse("preview.example.com")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(h.Roots)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	cfg := Config{
		Email: "ops@example.com", Issuers: []Issuer{{Directory: h.Directory, Roots: roots}}, Storage: store, Shared: true, Domain: domain, HTTP: at, Log: zap.NewNop(),
		Wait: 20 * time.Second, retry: 50 * time.Millisecond, check: 200 * time.Millisecond, Served: func(host string) bool { return slices.Contains(h.Served, host) },
	}
	if h.DNS != "" {
		cfg.DNS01 = &DNS01{Server: h.DNS, KeyName: "boxgate", KeyAlgorithm: "hmac-sha256", Key: name.NewSecret(tsigKey)}
	}
	return New(cfg)
}

func challenges(m *Manager) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if body, ok := m.Challenge(host, r.URL.Path); ok {
			_, _ = io.WriteString(w, body)
			return
		}
		http.NotFound(w, r)
	})
}

func serveTLS(ln net.Listener, m *Manager) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = tls.Server(conn, &tls.Config{GetCertificate: m.GetCertificate}).HandshakeContext(context.Background())
		}()
	}
}

// runningHost is the process of a host.
type runningHost struct {
	addresses
	t   *testing.T
	cmd *exec.Cmd
}

// startHost starts a host. It ends with the test.
func startHost(t *testing.T, h fleetHost) *runningHost {
	t.Helper()
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	r := &runningHost{t: t, cmd: exec.Command("/proc/self/exe")}
	r.cmd.Env, r.cmd.Stderr = append(os.Environ(), hostVariable+"="+string(text)), os.Stderr
	if _, err := r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r.addresses)
	}
	if err != nil {
		t.Fatalf("the host does not start: %v", err)
	}
	return r
}

// kill ends the process with SIGKILL. Later calls do nothing.
func (r *runningHost) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// leaf makes a handshake and returns the certificate, nil without one.
func (r *runningHost) leaf(host string) *x509.Certificate {
	conn, err := net.Dial("tcp", r.HTTPS)
	if err != nil {
		return nil
	}
	defer conn.Close()
	c := tls.Client(conn, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if c.Handshake() != nil {
		return nil
	}
	return c.ConnectionState().PeerCertificates[0]
}

// certified waits until all hosts show one certificate, which is not one of the others, and returns it.
func certified(t *testing.T, host string, hosts []*runningHost, others ...*x509.Certificate) *x509.Certificate {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		shown := make(chan *x509.Certificate, len(hosts))
		for _, h := range hosts {
			go func() { shown <- h.leaf(host) }()
		}
		first := <-shown
		same := first != nil && !slices.ContainsFunc(others, first.Equal)
		for range hosts[1:] {
			if c := <-shown; c == nil || !c.Equal(first) {
				same = false
			}
		}
		if same {
			return first
		}
	}
	t.Fatalf("the hosts never showed one certificate for %s", host)
	return nil
}

// fleetOf returns an etcd with the records of three hosts, and their descriptions, with an issuer.
func fleetOf(t *testing.T, i Issuer) (*etcdtest.Server, []fleetHost) {
	t.Helper()
	server := etcdtest.Start(t)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	hosts := make([]fleetHost, 3)
	records := map[string]any{fleetKeys.Founding(): fleet.Founding{ID: fleetFounding, Protocol: fleet.Protocol}}
	for n := range hosts {
		id := string("abc"[n]) + "00000"
		hosts[n] = fleetHost{ID: id, Endpoint: server.Endpoint(), Cache: filepath.Join(t.TempDir(), "acme"), Directory: i.Directory, Roots: roots}
		records[fleetKeys.Host(id)] = fleet.Host{ID: id, Protocol: fleet.Protocol, Key: []byte(id)}
	}
	for key, record := range records {
		text, err := fleet.Encode(record)
		if err == nil {
			_, err = server.Client().Put(t.Context(), key, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return server, hosts
}

// sharedIssuer starts a pebble that validates at a port, and a front of it.
func sharedIssuer(t *testing.T, httpPort uint16, dns string) (*pebbletest.Pebble, *front) {
	t.Helper()
	p := pebbletest.Start(t, pebbletest.Options{HTTPPort: httpPort, DNS: dns, Validity: 90 * 24 * time.Hour})
	return p, newFront(t, p)
}

// writeRoots writes the root of a front for the processes of hosts.
func writeRoots(t *testing.T, f *front, file string) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.certificate.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// forwarder is the address of all hosts together: it forwards each connection to the host that is chosen.
type forwarder struct {
	net.Listener
	to    atomic.Pointer[string]
	asked atomic.Int64
}

func newForwarder(t *testing.T) *forwarder {
	f := &forwarder{Listener: listen(t)}
	go func() {
		for {
			near, err := f.Accept()
			if err != nil {
				return
			}
			f.asked.Add(1)
			go func() {
				defer near.Close()
				far, err := net.Dial("tcp", *f.to.Load())
				if err != nil {
					return
				}
				defer far.Close()
				go func() { _, _ = io.Copy(far, near); _ = far.(*net.TCPConn).CloseWrite() }()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return f
}
