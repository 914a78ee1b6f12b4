package ingress

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"boxgate/audit"
	"boxgate/policy/name"
)

const secret = "0123456789abcdef0123456789abcdef"

// tokens makes an ingress that accepts tokens in a field.
func tokens(t *testing.T) (*fixture, *recorder) {
	t.Helper()
	f := start(t, func(c *Config) { c.TokenFields, c.FailedCredentials = []string{"X-Port-Token"}, 3 })
	return f, record(t)
}

// TestTokenFields: a visitor may send the token of a URL in a field of its own. The application gets neither, in any spelling, but the
// visitor's own Authorization.
func TestTokenFields(t *testing.T) {
	t.Parallel()
	f, app := tokens(t)
	f.expose("app", app.Server, Auth{Bearer: digest(BearerDigest(secret))})
	for _, h2 := range []bool{false, true} {
		c := f.client(t, h2)
		for _, edit := range []func(http.Header){
			func(h http.Header) { h.Set("X-Port-Token", secret) },
			func(h http.Header) { h.Set("x-port-token", secret); h.Set("Authorization", "Bearer application") },
			func(h http.Header) { h.Set("X-Port-Token", secret); h["X_Port.Token"] = []string{secret} },
			func(h http.Header) { h.Set("X-Port-Token", secret); h.Set("Authorization", "Bearer "+secret) },
			func(h http.Header) { h.Set("Authorization", "Bearer "+secret) },
		} {
			var sent string
			resp, _ := get(t, c, "https://app"+domain, func(r *http.Request) {
				edit(r.Header)
				sent = r.Header.Get("Authorization")
			})
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("HTTP/2 %v: %s", h2, resp.Status)
			}
			got := app.last(t)
			if strings.Contains(dump(got), secret) {
				t.Errorf("HTTP/2 %v: the application gets the token:\n%s", h2, dump(got))
			}
			if strings.Contains(sent, "application") && got.Header.Get("Authorization") != sent {
				t.Errorf("HTTP/2 %v: the application does not get its own credential", h2)
			}
		}
	}
	f.event(t, func(e audit.Event) bool { return e.Credential == audit.CredentialBearer && e.Reason == name.ReasonURL })
}

// TestWrongTokensInFields: wrong tokens are counted wherever they are sent; two values, other schemes and the query open nothing.
func TestWrongTokensInFields(t *testing.T) {
	t.Parallel()
	f, app := tokens(t)
	c := f.client(t, true)
	f.expose("app", app.Server, Auth{Bearer: digest(BearerDigest(secret))})
	f.expose("basic", app.Server, Auth{Basic: digest(BasicDigest("box", secret))})
	f.expose("two", app.Server, Auth{Bearer: digest(BearerDigest(secret))})
	field := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-Port-Token", value) }
	}
	for i, want := range []int{401, 401, 401, 429} {
		if resp, _ := get(t, c, "https://app"+domain, field("wrong")); resp.StatusCode != want {
			t.Errorf("wrong token %d: %s", i+1, resp.Status)
		}
	}
	for place, edit := range map[string]func(*http.Request){
		"two values": func(r *http.Request) { r.Header["X-Port-Token"] = []string{secret, secret} },
		"a scheme":   field("Bearer " + secret),
		"the query":  func(r *http.Request) { r.URL.RawQuery = "x-port-token=" + secret },
	} {
		if resp, _ := get(t, c, "https://two"+domain, edit); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", place, resp.Status)
		}
	}
	if resp, _ := get(t, c, "https://basic"+domain, field(secret)); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a password in the field: %s", resp.Status)
	}
	if app.count() != 0 {
		t.Errorf("%d requests reached the application", app.count())
	}
}

// TestWithheldToken: the application of a URL gets no token that opens other ports of its box, though the URL needs none.
func TestWithheldToken(t *testing.T) {
	t.Parallel()
	f, app := tokens(t)
	f.expose("open", app.Server, Auth{Open: true, Withheld: digest(BearerDigest(secret))})
	for _, h2 := range []bool{false, true} {
		for _, value := range []string{"Bearer " + secret, "bearer  " + secret} {
			get(t, f.client(t, h2), "https://open"+domain, func(r *http.Request) {
				r.Header.Set("Authorization", value)
				r.Header.Set("X-Port-Token", secret)
			})
			if got := dump(app.last(t)); strings.Contains(got, secret) {
				t.Errorf("HTTP/2 %v: %s", h2, got)
			}
		}
		get(t, f.client(t, h2), "https://open"+domain, func(r *http.Request) { r.Header.Set("Authorization", "Bearer other") })
		if app.last(t).Header.Get("Authorization") != "Bearer other" {
			t.Error("another token is removed")
		}
	}
}

// TestHostMask: an application gets the Host of its target, once, and the visitor's in X-Forwarded-Host.
func TestHostMask(t *testing.T) {
	t.Parallel()
	f, app := tokens(t)
	target := f.expose("app", app.Server, Auth{Open: true})
	target.Host = "localhost:3000"
	f.set("app"+domain, target)
	for _, h2 := range []bool{false, true} {
		get(t, f.client(t, h2), "https://app"+domain+"/x", nil)
		got := app.last(t)
		if got.Host != "localhost:3000" || got.Header.Get("X-Forwarded-Host") != "app"+domain || got.RequestURI != "/x" {
			t.Errorf("HTTP/2 %v: %s %s %s", h2, got.Host, got.RequestURI, dump(got))
		}
	}
}

// TestApplicationWithTLS: requests to a port whose application speaks TLS, with bodies in both directions.
func TestApplicationWithTLS(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	sni := make(chan string, 8)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Proto+" "+string(body))
	}))
	app.TLS = &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		sni <- h.ServerName
		return nil, nil
	}}
	app.StartTLS()
	t.Cleanup(app.Close)
	target := Target{ID: "app", Box: "box1", Addr: netip.MustParseAddrPort(app.Listener.Addr().String()), Auth: Auth{Open: true}, TLS: true, Protocol: HTTP1, Host: "localhost:8443"}
	f.set("app"+domain, target)
	for _, h2 := range []bool{false, true} {
		for range 2 {
			resp, err := f.client(t, h2).Post("https://app"+domain, "text/plain", strings.NewReader("sent"))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(body) != "HTTP/1.1 sent" {
				t.Errorf("HTTP/2 %v: %s %s", h2, resp.Status, body)
			}
			select {
			case name := <-sni:
				if name != "localhost" {
					t.Errorf("the name in TLS is %q", name)
				}
			case <-time.After(time.Minute):
				t.Fatal("no handshake")
			}
		}
	}
	plain := record(t)
	target.Addr = netip.MustParseAddrPort(plain.Listener.Addr().String())
	f.set("app"+domain, target)
	if resp, _ := get(t, f.client(t, true), "https://app"+domain, nil); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("an application without TLS: %s", resp.Status)
	}
}

// TestGRPCWithToken: gRPC's client sends the token as metadata of its own; the application gets its calls with the Host of the target, and
// without the token.
func TestGRPCWithToken(t *testing.T) {
	t.Parallel()
	f, _ := tokens(t)
	seen := make(chan metadata.MD, 1)
	app := grpcApp(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		seen <- md
		return next(ctx, req)
	}))
	target := f.exposeAt("app", app, Auth{Bearer: digest(BearerDigest(secret))}, Auto)
	target.Host = "localhost:9000"
	f.set("app"+domain, target)
	c := testgrpc.NewTestServiceClient(f.grpcClient(t, "app"))
	if _, err := c.EmptyCall(t.Context(), &testgrpc.Empty{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-port-token", secret, "authorization", "Bearer application")
	if _, err := c.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
		t.Fatal(err)
	}
	md := <-seen
	if len(md.Get("x-port-token")) > 0 || !slices.Equal(md.Get("authorization"), []string{"Bearer application"}) || !slices.Equal(md.Get(":authority"), []string{"localhost:9000"}) {
		t.Errorf("the application gets %v", md)
	}
}
