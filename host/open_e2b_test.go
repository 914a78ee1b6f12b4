package host

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"boxgate/api/e2b"
	"boxgate/api/server"
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
