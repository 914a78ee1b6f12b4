package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	"boxgate/fleet/etcdtest"
	"boxgate/ingress/balancer"
	"boxgate/internal/lab"
	"boxgate/policy"
)

// Addresses of two hosts on the link between their namespaces.
const (
	linkA = "10.77.0.1"
	linkB = "10.77.0.2"
)

// linked returns two members of a fleet that reach each other's public URLs.
func linked(t *testing.T, etcd *etcdtest.Server) (a, b *host) {
	t.Helper()
	make := func(address string) *host {
		return &host{World: harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
			c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}, Ingress: address + ":443", Advertise: address + ":8700"}
		}})}
	}
	a, b = make(linkA), make(linkB)
	run := func(h *host, args ...string) {
		if out, err := h.Net.Gateway().Run(t.Context(), "ip", args...); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run(a, "link", "add", "hosts", "type", "veth", "peer", "name", "hosts", "netns", b.Net.Gateway().Path())
	for address, h := range map[string]*host{linkA: a, linkB: b} {
		run(h, "address", "add", address+"/30", "dev", "hosts")
		run(h, "link", "set", "hosts", "up")
	}
	a.become("", "fleet", "init")
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	return a, b
}

// service is a server in a box, and its public URL.
type service struct {
	harness.PublicURL
	box   string
	name  string
	roots *x509.CertPool
	file  string // of roots
}

// serve runs a server in a new box of a host, and makes a public URL for it.
func (h *host) serve(port int, run func(net.Listener), with map[string]any) *service {
	h.T.Helper()
	in := h.Intrude(h.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	var ln net.Listener
	err := in.InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = ln.Close() })
	go run(ln)
	s := &service{box: in.Box, roots: x509.NewCertPool(), file: filepath.Join(h.T.TempDir(), "ca.pem")}
	with["port"] = port
	if err := h.Client.Do(h.T.Context(), "POST", api.BoxPath(in.Box, "preview"), with, &s.PublicURL); err != nil {
		h.T.Fatal(err)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		h.T.Fatal(err)
	}
	s.name = u.Hostname()
	var pem []byte
	if err := h.Client.Get(h.T.Context(), "/v2/ca", &pem); err != nil {
		h.T.Fatal(err)
	}
	if !s.roots.AppendCertsFromPEM(pem) || os.WriteFile(s.file, pem, 0o600) != nil {
		h.T.Fatal("the CA of public URLs")
	}
	return s
}

// dial connects from the internet of a host to its public URLs.
func (h *host) dial(ctx context.Context) (net.Conn, error) {
	v4, _ := h.Net.GatewayAddrs()
	return h.Net.Internet().DialContext(ctx, "tcp4", netip.AddrPortFrom(v4, 443).String())
}

// visitor returns a client on the internet of a host.
func (h *host) visitor(s *service) *http.Client {
	return &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx) },
		TLSClientConfig:   &tls.Config{RootCAs: s.roots},
		DisableKeepAlives: true,
	}}
}

// seen is an application that answers with the addresses that the gateway reports, and echoes WebSockets.
func seen() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, r.Method, " ", r.Header.Get("X-Forwarded-For"), " ", n)
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, said, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, said) != nil {
				return
			}
		}
	})
	return mux
}

// TestURLOfABoxOnAnotherHost: a visitor of one host reaches the public URL of a box on another, over each protocol. The application sees the
// visitor's address; credentials and cuts are the owner's.
func TestURLOfABoxOnAnotherHost(t *testing.T) {
	t.Parallel()
	a, b := linked(t, etcdtest.Start(t))
	app := &http.Server{Handler: seen()}
	t.Cleanup(func() { _ = app.Close() })
	s := b.serve(8000, func(ln net.Listener) { _ = app.Serve(ln) }, map[string]any{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*harness.Patience)
	defer cancel()
	var from string
	a.Until("the host passes visitors on", func() bool {
		c, err := a.dial(ctx)
		if err != nil {
			t.Fatal(err)
		}
		from, _, _ = net.SplitHostPort(c.LocalAddr().String())
		_ = c.Close()
		response, err := a.visitor(s).Get(s.URL)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	v4, _ := a.Net.GatewayAddrs()
	for _, version := range []string{"--http1.1", "--http2"} {
		cmd := exec.CommandContext(ctx, "curl", version, "-sS", "--cacert", s.file, "--resolve", s.name+":443:"+v4.String(), "--data-binary", "@"+s.file, s.URL)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := a.Net.Internet().Start(cmd); err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(s.file)
		if err := cmd.Wait(); err != nil || out.String() != fmt.Sprintf("POST %s %d", from, info.Size()) {
			t.Errorf("curl %s: %q, %v; the visitor is %s", version, out.String(), err, from)
		}
	}
	c, _, err := websocket.Dial(ctx, strings.Replace(s.URL, "https", "wss", 1)+"/socket", &websocket.DialOptions{HTTPClient: a.visitor(s)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Error(err)
	}
	if _, said, err := c.Read(ctx); err != nil || string(said) != "hello" {
		t.Errorf("WebSocket: %q, %v", said, err)
	}
	a.logs("splice", s.name, from)
	if passed := a.Metric(`boxgate_fleet_visitors_total{result="passed"}`); passed < 4 {
		t.Errorf("%v visitors passed on", passed)
	}
	b.Event(s.box, func(e audit.Event) bool { return e.Stage == policy.StageURL && e.Peer.String() == from })
	response, err := a.visitor(s).Get("https://8000-" + s.box + strings.TrimPrefix(s.name, s.box+"-8000"))
	if err != nil {
		t.Fatal(err)
	}
	if _ = response.Body.Close(); response.StatusCode != http.StatusOK {
		t.Errorf("the form {port}-{box}: %s", response.Status)
	}
	a.grpc(ctx, b)
	a.raw(ctx, b)
	if err := b.Client.Do(ctx, "DELETE", api.BoxPath(s.box, "preview/8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(ctx); err == nil {
		t.Error("the WebSocket outlives its URL")
	}
}

// logs waits for a line of the log with these words.
func (h *host) logs(words ...string) {
	h.T.Helper()
	h.Until("the log has a line with "+strings.Join(words, ", "), func() bool {
		for _, line := range strings.Split(h.ReadLog(), "\n") {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return true
			}
		}
		return false
	})
}

// visit returns the answer of a public URL of another host to a visitor of this one, or the error.
func (h *host) visit(s *service) (string, error) {
	response, err := h.visitor(s).Get(s.URL)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// TestHeadersOfOtherHosts: a host believes an address only from a member of its fleet. Forged headers, headers without a proof, and headers of
// a host that left are refused and logged. Without the host that has a box, its visitors get a TLS alert.
func TestHeadersOfOtherHosts(t *testing.T) {
	t.Parallel()
	a, b := linked(t, etcdtest.Start(t))
	app := &http.Server{Handler: seen()}
	t.Cleanup(func() { _ = app.Close() })
	s := b.serve(8000, func(ln net.Listener) { _ = app.Serve(ln) }, map[string]any{})
	works := func() bool { _, err := a.visit(s); return err == nil }
	a.Until("the host passes visitors on", works)
	claim := balancer.Passed{
		From: netip.MustParseAddrPort("203.0.113.9:4711"), To: netip.MustParseAddrPort("203.0.113.1:443"), Name: s.name, Mode: balancer.ModeTLS,
		Sender: a.id, Receiver: b.id, At: time.Now(), Nonce: balancer.NewNonce(),
	}
	forged := claim.Append(nil, make([]byte, 32))
	bare := append([]byte(nil), forged[:28]...)
	bare[14], bare[15] = 0, 12
	stranger := claim
	stranger.Sender = "ffffff"
	for what, header := range map[string][]byte{"was not made by it": forged, "not that of a host of this fleet": bare, "of a host of this fleet": stranger.Append(nil, make([]byte, 32))} {
		c, err := b.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if _, err := c.Write(header); err != nil {
			t.Error(err)
		}
		if err := tls.Client(c, &tls.Config{RootCAs: s.roots, ServerName: s.name}).HandshakeContext(t.Context()); err == nil {
			t.Errorf("%s: the host believes the header", what)
		}
		_ = c.Close()
		b.logs("bad_request", what)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.visit(s); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("while the host with the box is away: %v", err)
	}
	b.start()
	a.Until("the host passes visitors on again", works)
	b.command(0, "", "fleet", "leave", a.id)
	a.Until("a host that left passes no visitor on", func() bool { return !works() })
	b.logs("bad_request", "not that of a host of this fleet")
}

// grpc calls a gRPC server in a box of another host.
func (h *host) grpc(ctx context.Context, owner *host) {
	h.T.Helper()
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	h.T.Cleanup(server.Stop)
	s := owner.serve(9000, func(ln net.Listener) { _ = server.Serve(ln) }, map[string]any{})
	c, err := grpc.NewClient("passthrough:///"+s.name+":443", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: s.roots})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.dial(ctx) }))
	if err != nil {
		h.T.Fatal(err)
	}
	defer c.Close()
	answer, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		h.T.Errorf("gRPC: %v, %v", answer, err)
	}
}

// raw uses a public URL of raw TCP of another host: 4 MiB each way, and the end of one direction.
func (h *host) raw(ctx context.Context, owner *host) {
	h.T.Helper()
	s := owner.serve(5432, func(ln net.Listener) {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}, map[string]any{"protocol": "tcp"})
	bare, err := h.dial(ctx)
	if err != nil {
		h.T.Fatal(err)
	}
	c := tls.Client(bare, &tls.Config{RootCAs: s.roots, ServerName: s.name})
	defer c.Close()
	const size = 4 << 20
	go func() {
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
	}()
	_ = c.SetReadDeadline(time.Now().Add(harness.Patience))
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		h.T.Errorf("raw TCP: %d bytes, %v", n, err)
	}
}
