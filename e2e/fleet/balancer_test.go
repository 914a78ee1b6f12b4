package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/ingress/balancer"
	"boxgate/internal/testnet"
	"boxgate/policy"
)

// unpacked is where `make proxies` unpacks HAProxy with its libraries.
const unpacked = "/var/lib/boxgate/balancers/"

// Addresses of the load balancer and of its visitors on the switch of the hosts.
const (
	balancerAddress = "10.213.0.100"
	visitorAddress  = "10.213.0.101"
)

// balanced are three members of a fleet, and HAProxy, which ends the TLS of visitors and sends their requests to the first two.
type balanced struct {
	t       *testing.T
	a, b, c *host
	lan     *testnet.NS
	roots   *x509.CertPool // of HAProxy's certificate
	file    string         // the same
}

// behindHAProxy starts the hosts. change edits their configuration.
func behindHAProxy(t *testing.T, change func(*config.Config)) *balanced {
	t.Helper()
	j, lan := switched(t, func(i int, c *config.Config) {
		c.Fleet.Ingress = address(i) + ":443"
		c.Ingress.ProxyProtocol = []string{balancerAddress + "/32"}
		c.Ingress.HTTP = "127.0.0.1:80"
		if change != nil {
			change(c)
		}
	})
	w := &balanced{t: t, a: j.hosts[0], b: j.hosts[1], c: j.hosts[2], lan: lan.NS(), roots: x509.NewCertPool()}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", balancerAddress + "/24", "dev", "switch"}, {"address", "add", visitorAddress + "/24", "dev", "switch"}} {
		if out, err := lan.NS().Run(t.Context(), "ip", args...); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	w.start()
	return w
}

// start starts HAProxy, and waits until it accepts visitors.
func (w *balanced) start() {
	w.t.Helper()
	dir := w.t.TempDir()
	w.file = filepath.Join(dir, "balancer.pem")
	w.certify()
	text := fmt.Sprintf(`
defaults
  mode http
  timeout connect 30s
  timeout client 120s
  timeout server 120s
frontend visitors
  bind %s:443 ssl crt %s alpn h2,http/1.1
  default_backend hosts
backend hosts
  balance roundrobin
  http-reuse safe
  server a %s:443 ssl verify none alpn h2,http/1.1 send-proxy-v2
  server b %s:443 ssl verify none alpn h2,http/1.1 send-proxy-v2
`, balancerAddress, w.file, address(0), address(1))
	conf := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	libraries, err := filepath.Glob(unpacked + "usr/lib/*-linux-gnu")
	if err != nil || len(libraries) == 0 {
		w.t.Fatalf("no HAProxy in %s: run make proxies", unpacked)
	}
	cmd := exec.Command(unpacked+"usr/sbin/haproxy", "-db", "-f", conf)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.lan.Start(cmd); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	w.a.Until("HAProxy accepts visitors", func() bool {
		select {
		case <-ended:
			w.t.Fatalf("HAProxy: %s", out.String())
		default:
		}
		c, err := w.lan.DialContext(w.t.Context(), "tcp", balancerAddress+":443")
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

// certify makes HAProxy's certificate.
func (w *balanced) certify() {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	like := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "balancer"}, DNSNames: []string{"*.preview.localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, like, like, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	if !w.roots.AppendCertsFromPEM(text) || os.WriteFile(w.file, text, 0o600) != nil {
		w.t.Fatal("HAProxy's certificate")
	}
}

// dial connects to HAProxy as a visitor.
func (w *balanced) dial(ctx context.Context) (net.Conn, error) {
	return w.connect(ctx, balancerAddress)
}

// connect connects a visitor to an address on the switch.
func (w *balanced) connect(ctx context.Context, to string) (c net.Conn, err error) {
	err = w.lan.Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(visitorAddress)}}
		c, err = d.DialContext(ctx, "tcp", to+":443")
		return err
	})
	return c, err
}

// visitor returns a client of HAProxy that keeps its connections.
func (w *balanced) visitor() *http.Client {
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) },
		TLSClientConfig: &tls.Config{RootCAs: w.roots},
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: harness.Patience, Transport: transport}
}

// get returns the status and the body of the answer to a visitor, or the error.
func get(c *http.Client, address string) string {
	response, err := c.Get(address)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(response.StatusCode) + " " + string(text)
}

// app starts an application in a new box of a host that answers with its name and the visitor as the gateway describes it.
func (h *host) app(name string, with map[string]any) *service {
	h.T.Helper()
	mux := http.NewServeMux()
	mux.Handle("/socket", seen())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, name, " ", r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Proto"), " ", n)
	})
	app := &http.Server{Handler: mux}
	h.T.Cleanup(func() { _ = app.Close() })
	return h.serve(8000, func(ln net.Listener) { _ = app.Serve(ln) }, with)
}

// TestURLsBehindABalancer: HAProxy ends the TLS of visitors in front of two hosts. The name in each request decides about the host that serves
// it, over each protocol. Address, credential, wake and log are the owner's.
func TestURLsBehindABalancer(t *testing.T) {
	t.Parallel()
	w := behindHAProxy(t, nil)
	first, third := w.a.app("first", map[string]any{"bearer_token": true}), w.c.app("third", map[string]any{"bearer_token": true})
	ctx, cancel := context.WithTimeout(t.Context(), 3*harness.Patience)
	defer cancel()
	visitor := w.visitor()
	w.a.Until("both hosts know the others", func() bool {
		for range 4 { // HAProxy takes turns
			if !strings.HasPrefix(get(visitor, third.URL), "401 ") || !strings.HasPrefix(get(visitor, first.URL), "401 ") {
				return false
			}
		}
		return true
	})
	info, _ := os.Stat(w.file)
	for _, version := range []string{"--http1.1", "--http2"} {
		args := []string{version, "-sS", "--interface", visitorAddress, "--cacert", w.file}
		for i, s := range []*service{first, third, first, third} {
			if i > 0 {
				args = append(args, "--next", version, "-sS", "--interface", visitorAddress, "--cacert", w.file)
			}
			args = append(args, "--resolve", s.name+":443:"+balancerAddress, "-H", "Authorization: Bearer "+s.Token, "-H", "X-Forwarded-For: 192.0.2.66", "-H", "Expect: 100-continue", "--data-binary", "@"+w.file, "-w", `\n`, s.URL)
		}
		cmd := exec.CommandContext(ctx, "curl", args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := w.lan.Start(cmd); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		one, three := fmt.Sprintf("first %s https %d\n", visitorAddress, info.Size()), fmt.Sprintf("third %s https %d\n", visitorAddress, info.Size())
		if err != nil || out.String() != one+three+one+three {
			t.Errorf("curl %s: %q, %v", version, out.String(), err)
		}
	}
	w.c.Event(third.box, func(e audit.Event) bool {
		return e.Stage == policy.StageURL && e.Peer.String() == visitorAddress && e.Credential == audit.CredentialBearer && e.Status == http.StatusOK
	})
	if out, err := w.a.Net.Gateway().Run(ctx, "curl", "-sS", "-H", "Host: "+third.name, "-H", "Authorization: Bearer "+third.Token, "http://127.0.0.1/"); err != nil || string(out) != "third 127.0.0.1 http 0" {
		t.Errorf("a reverse proxy on the host, over plain HTTP: %s, %v", out, err)
	}
	for range 2 { // by either host
		w.socket(ctx, third)
	}
	w.grpc(ctx)
	socket, _, err := websocket.Dial(ctx, strings.Replace(third.URL, "https", "wss", 1)+"/socket", w.with(third))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.CloseNow() }()
	if err := w.c.Client.Do(ctx, "DELETE", api.BoxPath(third.box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := socket.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the WebSocket outlives its URL: %v", err)
	}
	if answer := get(visitor, third.URL); !strings.HasPrefix(answer, "404 ") {
		t.Errorf("the deleted URL: %s", answer)
	}
}

// with returns options for a WebSocket with the token of a URL.
func (w *balanced) with(s *service) *websocket.DialOptions {
	return &websocket.DialOptions{HTTPClient: w.visitor(), HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}}}
}

// socket exchanges a message over a new WebSocket.
func (w *balanced) socket(ctx context.Context, s *service) {
	w.t.Helper()
	c, _, err := websocket.Dial(ctx, strings.Replace(s.URL, "https", "wss", 1)+"/socket", w.with(s))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		w.t.Error(err)
	}
	if _, said, err := c.Read(ctx); err != nil || string(said) != "hello" {
		w.t.Errorf("WebSocket: %q, %v", said, err)
	}
}

// grpc calls a gRPC server in a box of the third host: an answer, an error in trailers alone, and a stream.
func (w *balanced) grpc(ctx context.Context) {
	w.t.Helper()
	server, states := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, states)
	w.t.Cleanup(server.Stop)
	s := w.c.serve(9000, func(ln net.Listener) { _ = server.Serve(ln) }, map[string]any{})
	c, err := grpc.NewClient("passthrough:///"+s.name+":443", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: w.roots})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	client := healthpb.NewHealthClient(c)
	for range 4 {
		if answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
			w.t.Errorf("gRPC: %v, %v", answer, err)
		}
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); err == nil || !strings.Contains(err.Error(), "unknown service") {
			w.t.Errorf("gRPC, an error: %v", err)
		}
	}
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if answer, err := stream.Recv(); err != nil || answer.Status != want {
			w.t.Fatalf("gRPC, a stream: %v, %v; want %v", answer, err, want)
		}
		states.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
}

// TestAttackRequestsOfOtherHosts: a host believes a visitor's address of a request only from a member of its fleet, which proves itself by its
// certificate, too. Strangers, boxes and a host that has left are refused.
func TestAttackRequestsOfOtherHosts(t *testing.T) {
	t.Parallel()
	w := behindHAProxy(t, nil)
	s := w.c.app("third", map[string]any{})
	visitor := w.visitor()
	works := func() bool { return strings.HasPrefix(get(visitor, s.URL), "200 ") }
	w.a.Until("the hosts pass requests on", func() bool { return works() && works() && works() })
	claim := balancer.Passed{
		From: netip.MustParseAddrPort("203.0.113.9:4711"), To: netip.MustParseAddrPort("203.0.113.1:443"), Name: s.name, Mode: balancer.ModeHTTPS,
		Sender: w.a.id, Receiver: w.c.id, At: time.Now(), Nonce: balancer.NewNonce(),
	}
	forged := claim.Append(nil, make([]byte, 32))
	try := func(c net.Conn) error {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if _, err := c.Write(forged); err != nil {
			return err
		}
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		if _, err := fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", s.name); err != nil {
			return err
		}
		_, err := secure.Read(make([]byte, 1))
		return err
	}
	c, err := w.connect(t.Context(), address(2))
	if err != nil {
		t.Fatal(err)
	}
	if try(c) == nil {
		t.Error("the host believes a stranger")
	}
	w.c.logs("bad_request", "was not made by it")
	in := w.c.Intrude(w.c.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
	for what, to := range map[string]string{"the address of its host": address(2) + ":443", "the address of another host": address(0) + ":443"} {
		err := in.InNetNS(func() error {
			c, err := net.DialTimeout("tcp", to, harness.Patience)
			if err != nil {
				return err
			}
			return try(c)
		})
		if err == nil {
			t.Errorf("a box at %s is believed", what)
		}
	}
	w.c.command(0, "", "fleet", "leave", w.a.id)
	w.c.command(0, "", "fleet", "leave", w.b.id)
	w.c.Until("hosts that left pass nothing on", func() bool { return !works() && !works() })
}

// TestOwnDomainsInAFleet: a domain of a URL leads to its box by any host, with the TLS of visitors passed on, and behind HAProxy. One host alone
// has it; when its URL is deleted, another host can have it.
func TestOwnDomainsInAFleet(t *testing.T) {
	t.Parallel()
	w := behindHAProxy(t, nil)
	const domain = "app.customer.example"
	s := w.c.app("third", map[string]any{"hostnames": []string{domain}})
	for _, h := range []*host{w.a, w.c} { // which end TLS themselves
		var text []byte
		if err := h.Client.Get(t.Context(), "/v2/ca", &text); err != nil || !w.roots.AppendCertsFromPEM(text) {
			t.Fatal("the CA of public URLs", err)
		}
	}
	passed := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.connect(ctx, address(0)) },
		TLSClientConfig: &tls.Config{RootCAs: w.roots}, DisableKeepAlives: true,
	}}
	handed := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) },
		TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "any.preview.localhost"}, // HAProxy has no certificate of the domain
	}}
	answers := func(want string) func() bool {
		return func() bool {
			for range 2 { // HAProxy takes turns
				if got := get(handed, "https://"+domain); !strings.HasPrefix(got, want) {
					t.Logf("behind HAProxy: %s", got)
					return false
				}
			}
			got := get(passed, "https://"+domain)
			if !strings.HasPrefix(got, want) {
				t.Logf("TLS is passed on: %s", got)
			}
			return strings.HasPrefix(got, want)
		}
	}
	w.a.Until("the domain leads to its box by the other hosts", answers("200 third "+visitorAddress+" https "))
	box := w.a.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	take := func() error {
		return w.a.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "hostnames": []string{domain}}, nil)
	}
	if err := take(); err == nil || !strings.Contains(err.Error(), "another host of the fleet serves this domain: "+w.c.id) {
		t.Errorf("the domain of another host's URL: %v", err)
	}
	if err := w.c.Client.Do(t.Context(), "DELETE", api.BoxPath(s.box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	w.a.Until("the freed domain can be had on another host", func() bool { return take() == nil })
	w.a.Until("the domain leads to its new box", answers("502 ")) // which has no program
}
