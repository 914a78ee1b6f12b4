package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"boxgate/api/access"
	"boxgate/api/e2b"
	"boxgate/api/server"
	"boxgate/config"
	"boxgate/host/urls"
	"boxgate/policy"
)

// TestNamesOfTheDialectLeadToNoOtherAPI: after its turn has passed on, a gateway forwards only paths of E2B's dialect to its successor,
// whose admin API has others; before the API exists, requests are refused.
func TestNamesOfTheDialectLeadToNoOtherAPI(t *testing.T) {
	t.Parallel()
	var dialled atomic.Int64
	turn := &adminTurn{passed: true, dial: func(context.Context) (net.Conn, error) {
		dialled.Add(1)
		return nil, errors.New("no successor in this test")
	}}
	n := &dialectNames{turn: turn}
	own := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	ask := func(serves func(string) bool, path string) int {
		rec := httptest.NewRecorder()
		n.handle(serves, func(*server.API, *http.Request) http.Handler { return own }).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return rec.Code
	}
	if code := ask(e2b.IsControl, "/sandboxes"); code != http.StatusServiceUnavailable || dialled.Load() != 0 {
		t.Errorf("before the API exists: %d, %d connections", code, dialled.Load())
	}
	n.admin.Store(&server.API{})
	for _, c := range []struct {
		serves    func(string) bool
		path      string
		forwarded bool
	}{
		{e2b.IsControl, "/sandboxes", true}, {e2b.IsControl, "/v2/box", false}, {e2b.IsControl, "/v2/api-keys", false}, {e2b.IsControl, "/ui/", false},
		{e2b.IsSandbox, "/process.Process/List", true}, {e2b.IsSandbox, "/v2/box", false}, {e2b.IsSandbox, "/sandboxes", false},
	} {
		before := dialled.Load()
		code := ask(c.serves, c.path)
		if forwarded := dialled.Load() > before; forwarded != c.forwarded || !forwarded && code != http.StatusNotFound {
			t.Errorf("%s: forwarded: %v, status %d", c.path, forwarded, code)
		}
	}
}

// TestSandboxesOfASuccessor: a call of a sandbox that arrives by its host name while the gateway is replaced reaches the successor's admin
// API as one for this box, whatever box its header names, with a Host that is accepted there.
func TestSandboxesOfASuccessor(t *testing.T) {
	t.Parallel()
	successor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !access.NewHosts(nil).Known(r) {
			http.Error(w, r.Host, http.StatusMisdirectedRequest)
			return
		}
		_, _ = io.WriteString(w, r.Header.Get(e2b.SandboxHeader)+" "+r.URL.RequestURI())
	}))
	t.Cleanup(successor.Close)
	turn := newAdminTurn(nil, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", successor.Listener.Addr().String())
	})
	turn.decide(true)
	names := &dialectNames{turn: turn}
	names.admin.Store(&server.API{})
	table := urls.NewTable(config.Ingress{Domain: "boxes.example"}, "")
	names.serveIn(table, func(policy.BoxID) bool { return true })
	const box = "0123456789abcdef"
	target, ok := table.Lookup("49983-" + box + ".boxes.example")
	if !ok {
		t.Fatal("the host name has no target")
	}
	ask := func(path string) (int, string) {
		r := httptest.NewRequest("GET", "https://49983-"+box+".boxes.example"+path, nil)
		r.URL.Scheme, r.URL.Host = "", ""
		r.Header.Set(e2b.SandboxHeader, "fedcba9876543210")
		rec := httptest.NewRecorder()
		target.Handler.ServeHTTP(rec, r)
		return rec.Code, rec.Body.String()
	}
	if status, body := ask("/files?path=a&signature=v1_x"); status != http.StatusOK || body != box+" /files?path=a&signature=v1_x" {
		t.Errorf("%d %s", status, body)
	}
}
