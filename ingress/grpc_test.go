package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"boxgate/audit"
	"boxgate/relay"
)

// grpcApp is a gRPC server without TLS, like one in a box.
func grpcApp(t *testing.T, options ...grpc.ServerOption) net.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	go func() { _ = s.Serve(ln) }() // Stop ends it
	t.Cleanup(s.Stop)
	return ln.Addr()
}

// exposeAt makes a public URL for an application.
func (f *fixture) exposeAt(host string, at net.Addr, auth Auth, p Protocol) Target {
	t := Target{ID: host, Box: "box1", Addr: netip.MustParseAddrPort(at.String()), Auth: auth, Protocol: p}
	f.set(host+domain, t)
	return t
}

// grpcClient is a gRPC client of a public URL.
func (f *fixture) grpcClient(t *testing.T, host string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+host+domain,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: f.roots})),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), // the handshake may be slow on a busy machine
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", f.https)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestGRPC runs gRPC's own interoperability cases through a public URL, with the protocol probed and configured.
func TestGRPC(t *testing.T) {
	t.Parallel()
	for _, p := range []Protocol{Auto, H2C} {
		f := start(t, nil)
		f.exposeAt("a", grpcApp(t), Auth{Open: true}, p)
		c := testgrpc.NewTestServiceClient(f.grpcClient(t, "a"))
		ctx := t.Context()
		interop.DoEmptyUnaryCall(ctx, c)
		interop.DoLargeUnaryCall(ctx, c)
		interop.DoClientStreaming(ctx, c)
		interop.DoServerStreaming(ctx, c)
		interop.DoPingPong(ctx, c)
		interop.DoEmptyStream(ctx, c)
		interop.DoTimeoutOnSleepingServer(ctx, c)
		cancelAfterBegin(t, c)
		interop.DoCancelAfterFirstResponse(ctx, c)
		interop.DoCustomMetadata(ctx, c)
		interop.DoStatusCodeAndMessage(ctx, c)
		interop.DoSpecialStatusMessage(ctx, c)
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(f.grpcClient(t, "a")))
		interop.DoUnimplementedMethod(ctx, f.grpcClient(t, "a"))
	}
}

// cancelAfterBegin is gRPC's case of that name, but leaves the request open: its response could arrive before the
// cancellation.
func cancelAfterBegin(t *testing.T, c testgrpc.TestServiceClient) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.StreamingInputCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := stream.RecvMsg(&testgrpc.StreamingInputCallResponse{}); status.Code(err) != codes.Canceled {
		t.Errorf("a call that was cancelled ended with %v", err)
	}
}

// TestGRPCNeedsTheCredential: without the token a call does not reach the application; with it, the application does not see
// the token.
func TestGRPCNeedsTheCredential(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	var calls atomic.Int64
	app := grpcApp(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		calls.Add(1)
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("authorization")) > 0 {
			t.Error("the application sees the credential")
		}
		return next(ctx, req)
	}))
	f.exposeAt("a", app, Auth{Bearer: digest(BearerDigest("right"))}, Auto)
	c := testgrpc.NewTestServiceClient(f.grpcClient(t, "a"))
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer wrong": codes.Unauthenticated, "Bearer right": codes.OK} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
		}
		if _, err := c.EmptyCall(ctx, &testgrpc.Empty{}); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", token, err, want)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls arrived", calls.Load())
	}
}

// TestRevocationCutsGRPC: an idle stream ends with its URL.
func TestRevocationCutsGRPC(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exposeAt("a", grpcApp(t), Auth{Open: true}, Auto)
	c := testgrpc.NewTestServiceClient(f.grpcClient(t, "a"))
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := &testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{Size: 1}}}
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	f.remove("a" + domain)
	f.CloseURL("a")
	if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream goes on: %v", err)
	}
	e := f.event(t, func(e audit.Event) bool { return strings.HasSuffix(e.Path, "/FullDuplexCall") })
	if e.Error != errCut.Error() || e.BytesIn == 0 || e.BytesOut == 0 {
		t.Errorf("%+v", e)
	}
}

// h2App is an application that speaks HTTP/2 without TLS.
func h2App(t *testing.T, handler http.HandlerFunc) net.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			//lint:ignore SA1019 the connection is the test's own
			go (&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: handler})
		}
	}()
	return ln.Addr()
}

// TestApplicationsOverHTTP2 sends ordinary requests of both versions to an application configured for HTTP/2: it gets and
// returns the same as one that speaks HTTP/1.1.
func TestApplicationsOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.exposeAt("a", h2App(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.ProtoMajor != 2 || r.Host != "a"+domain || r.Header.Get("X-Forwarded-For") != "127.0.0.1" || r.Header.Get("X-Real-Ip") != "127.0.0.1" {
			t.Errorf("%s %s %v", r.Proto, r.Host, r.Header)
		}
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Set-Cookie", "a=b; Domain=preview.test")
		w.Header().Set("Alt-Svc", `h3=":443"`)
		w.Header().Set("X-Method", r.Method)
		if r.URL.Path == "/length" {
			w.Header().Del("Trailer")
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "hello")
			return
		}
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", "7")
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "evil=1")
	}), Auth{Open: true}, H2C)
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT"} {
			sent := ""
			if method == "POST" || method == "PUT" {
				sent = strings.Repeat("x", 300_000)
			}
			req, err := http.NewRequest(method, "https://a"+domain+"/x", io.NopCloser(strings.NewReader(sent)))
			if err != nil {
				t.Fatal(err)
			}
			if sent == "" {
				req.Body = nil
			}
			req.Header.Set("X-Forwarded-For", "6.6.6.6")
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(got) != sent || res.StatusCode != 200 || res.Header.Get("X-Method") != method {
				t.Errorf("%s %s: %s %v, %d bytes, %v", res.Proto, method, res.Status, res.Header, len(got), err)
			}
			if res.Header.Get("Set-Cookie") != "a=b" || res.Header.Get("Alt-Svc") != "" || res.Trailer.Get("Set-Cookie") != "" {
				t.Errorf("%s %s: %v %v", res.Proto, method, res.Header, res.Trailer)
			}
			if method != "HEAD" && res.Trailer.Get("X-Sum") != "7" {
				t.Errorf("%s %s: trailers %v", res.Proto, method, res.Trailer)
			}
		}
		if res, body := get(t, c, "https://a"+domain+"/length", nil); body != "hello" || res.ContentLength != 5 {
			t.Errorf("%s: %q of %d", res.Proto, body, res.ContentLength)
		}
	}
}

// prefaces counts the connections that begin with the preface of HTTP/2.
type prefaces struct {
	net.Conn
	n *atomic.Int64
}

func (p prefaces) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("PRI * HTTP/2.0")) {
		p.n.Add(1)
	}
	return p.Conn.Write(b)
}

// TestApplicationWithoutHTTP2 sends gRPC calls to an application that speaks HTTP/1.1: it is probed once, and answers the
// calls. After another application has taken its port, that one is probed.
func TestApplicationWithoutHTTP2(t *testing.T) {
	t.Parallel()
	plain, speaks := record(t), grpcApp(t)
	var at atomic.Value    // the application's address; "": the port refuses connections
	var asked atomic.Int64 // probes for HTTP/2
	at.Store(plain.Listener.Addr().String())
	f := start(t, func(cfg *Config) {
		cfg.Dial = func(ctx context.Context, _ Target) (net.Conn, error) {
			if at.Load() == "" {
				return nil, syscall.ECONNREFUSED
			}
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Load().(string))
			return prefaces{conn, &asked}, err
		}
	})
	f.expose("a", plain.Server, Auth{Open: true})
	c := f.client(t, true)
	call := func() int {
		res, _ := get(t, c, "https://a"+domain+"/x", func(r *http.Request) {
			r.Method = http.MethodPost
			r.Header.Set("Content-Type", "application/grpc+proto")
		})
		return res.StatusCode
	}
	for range 3 {
		if status := call(); status != 200 || plain.last(t).ProtoMajor != 1 || plain.last(t).Method != http.MethodPost {
			t.Errorf("%d", status)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the application was asked %d times for HTTP/2", n)
	}
	at.Store("")
	plain.CloseClientConnections()
	if status := call(); status != http.StatusBadGateway {
		t.Errorf("nothing listens: %d", status)
	}
	at.Store(speaks.String())
	if _, err := testgrpc.NewTestServiceClient(f.grpcClient(t, "a")).EmptyCall(t.Context(), &testgrpc.Empty{}); err != nil {
		t.Errorf("after the application was replaced: %v", err)
	}
}

// TestVisitorsWhoLeaveWaitForNoApplication has an application that does not accept: a visitor of either version who leaves
// while the gateway is connecting frees its place.
func TestVisitorsWhoLeaveWaitForNoApplication(t *testing.T) {
	t.Parallel()
	dialling := make(chan struct{}, 10)
	f := start(t, func(cfg *Config) {
		cfg.DialTimeout = time.Hour
		cfg.Dial = func(ctx context.Context, _ Target) (net.Conn, error) {
			dialling <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	box := record(t)
	for host, h2 := range map[string]bool{"one": false, "two": true} {
		f.exposeAt(host, box.Listener.Addr(), Auth{Open: true}, H2C)
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+domain+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		c := f.client(t, h2)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if res, err := c.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		<-dialling
		leave()
		<-ended
		f.event(t, func(e audit.Event) bool { return e.Name == host+domain && e.Error == relay.ErrClientGone.Error() })
	}
}

// TestNobodyTakesAllRequestsOverHTTP2 opens requests whose responses are not read: a visitor gets a quarter of the places, a
// box half, over any number of its URLs, and all places are returned.
func TestNobodyTakesAllRequestsOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.http2Places.most = 16
	app := h2App(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	for _, host := range []string{"one", "two", "other"} {
		target := f.exposeAt(host, app, Auth{Open: true}, H2C)
		if host == "other" {
			target.Box = "box2"
			f.set(host+domain, target)
		}
	}
	clients := map[string]*http.Client{}
	ask := func(address, host string, want int) {
		t.Helper()
		if clients[address+host] == nil {
			clients[address+host] = f.from(t, address)
		}
		res, err := clients[address+host].Get("https://" + host + domain + "/")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if res.StatusCode != want {
			t.Errorf("%s, %s: %s", address, host, res.Status)
		}
	}
	for _, address := range []string{"127.0.0.31", "127.0.0.32"} {
		for _, host := range []string{"one", "two", "one", "two"} {
			ask(address, host, 200)
		}
		ask(address, "other", 429)
	}
	ask("127.0.0.33", "two", 429)
	ask("127.0.0.33", "other", 200)
	f.CloseBox("box1")
	ask("127.0.0.33", "two", 200)
}

// TestResetOfTheApplication: a call that the application resets before it answers ends for the visitor with the same code, and
// over HTTP/1.1 with a 502.
func TestResetOfTheApplication(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go resetAll(c)
		}
	}()
	f.exposeAt("a", ln.Addr(), Auth{Open: true}, H2C)
	v := f.frames(t, "a")
	if r := v.answer(v.ask(true, to("GET", "a", "/")...)); r.ended || r.reset != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("over HTTP/2: %+v", r)
	}
	if res, _ := get(t, f.client(t, false), "https://a"+domain+"/", nil); res.StatusCode != http.StatusBadGateway {
		t.Errorf("over HTTP/1.1: %s", res.Status)
	}
}

// resetAll resets each request.
func resetAll(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	frames := http2.NewFramer(c, c)
	_ = frames.WriteSettings()
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			return
		}
		if f.Header().Type == http2.FrameHeaders {
			_ = frames.WriteRSTStream(f.Header().StreamID, http2.ErrCodeEnhanceYourCalm)
		}
	}
}
