package conformance

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"boxgate/api"
	"boxgate/conformance"
	"boxgate/e2e/harness"
)

// publicWorld is a box with an application, and its public URL.
type publicWorld struct {
	*harness.World
	target conformance.Target
}

// newPublicWorld serves an application by plain HTTP/1.1 in a box, and makes an open public URL for it.
func newPublicWorld(t *testing.T, app http.Handler) *publicWorld {
	t.Helper()
	return newPublicWorldOf(t, func(ln net.Listener) { serveHTTP(t, ln, app) })
}

// newPublicWorldOf is newPublicWorld for any application.
func newPublicWorldOf(t *testing.T, serve func(net.Listener)) *publicWorld {
	t.Helper()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	var ln net.Listener
	err := in.InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", ":8000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(ln)
	var made harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(in.Box, "preview"), map[string]any{"port": 8000}, &made); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := w.Net.GatewayAddrs()
	if err := w.Net.SetRecords(u.Hostname(), u.Hostname()+". 60 IN A "+at.String()); err != nil {
		t.Fatal(err)
	}
	var pem []byte
	if err := w.Client.Get(t.Context(), "/v2/ca", &pem); err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(roots, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return &publicWorld{w, conformance.Target{Host: u.Hostname(), DNS: w.Net.DNSServers()[0], Roots: roots, Full: fullSuites}}
}

// visit runs a suite's client as a visitor from the internet. All of the given number of cases must pass.
func (w *publicWorld) visit(suite string, cases int) {
	w.T.Helper()
	results, err := conformance.Client(w.T.Context(), suite, w.target, w.T.TempDir(), w.Net.Internet().Start)
	if err != nil {
		w.T.Fatal(err)
	}
	run := conformance.Run{Way: "to a public URL", Results: results}
	report(w.T, suite+", public URL", run)
	if len(results) < cases {
		w.T.Errorf("%d cases, not %d", len(results), cases)
	}
	for _, r := range run.Except() {
		if r.Outcome != conformance.Informational {
			w.T.Errorf("%s: %s %s: %s %s %s", suite, r.Case, r.Title, r.Outcome, r.Detail, r.Seen)
		}
	}
}

// TestConformancePublicURLHTTP2 runs h2spec against a public URL, whose application speaks HTTP/1.1.
func TestConformancePublicURLHTTP2(t *testing.T) {
	t.Parallel()
	newPublicWorld(t, conformance.HTTP2Handler()).visit("h2spec", 146)
}

// TestConformancePublicURLWebSocket runs the WebSocket cases against a public URL, opened by an upgrade and by an
// extended CONNECT. The application supports upgrades only.
func TestConformancePublicURLWebSocket(t *testing.T) {
	t.Parallel()
	w := newPublicWorld(t, conformance.WebSocketHandler())
	for _, suite := range []string{"websocket over HTTP/1.1", "websocket over HTTP/2"} {
		w.visit(suite, 517)
	}
}

// TestConformancePublicURLGRPC runs gRPC's interoperability cases against a public URL, without configuring the
// application's protocol.
func TestConformancePublicURLGRPC(t *testing.T) {
	t.Parallel()
	w := newPublicWorldOf(t, func(ln net.Listener) {
		t.Cleanup(conformance.ServePlainGRPC(ln, "x-api-key", harness.Canary).Stop)
	})
	w.visit("grpc", 16)
}
