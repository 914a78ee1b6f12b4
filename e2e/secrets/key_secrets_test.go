package secrets

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestSecretOfAKeyIsReplacedUnderFlood: while a box floods a server and its API key replaces a secret that two headers have, each request
// carries one value in both, never an older one than an earlier request on that connection, and the request after the last change the last
// value. A deleted secret goes nowhere, and the store has no value of it in clear.
func TestSecretOfAKeyIsReplacedUnderFlood(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	const host = "api.example.com"
	var mu sync.Mutex
	seen, wrong, last := 0, []string{}, map[string]int{}
	err := w.Net.ServeHTTP(host, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		a, b := r.Header.Get("X-A"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		n, err := strconv.Atoi(strings.TrimPrefix(a, "value-of-the-key-"))
		if a != b || err != nil || n < last[r.RemoteAddr] {
			wrong = append(wrong, fmt.Sprintf("%q and %q after %d", a, b, last[r.RemoteAddr]))
		}
		seen++
		last[r.RemoteAddr] = n
		_, _ = io.WriteString(rw, a+"\n")
	}))
	if err != nil {
		t.Fatal(err)
	}
	var key struct{ ID, Key string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "own", "role": "box-creator"}, &key); err != nil {
		t.Fatal(err)
	}
	own := api.NewClient(w.Socket, key.Key)
	value := func(n int) string { return "value-of-the-key-" + strconv.Itoa(n) }
	call := func(method, path string, body any, into any) {
		t.Helper()
		if err := own.Do(t.Context(), method, path, body, into); err != nil {
			t.Fatal(err)
		}
	}
	call("POST", "/v2/key-secrets", map[string]any{"name": "s", "value": value(0), "hosts": []string{host}}, nil)
	var box struct{ ID string }
	call("POST", "/v2/box", map[string]any{
		"network_policy": harness.Custom(host),
		"attach_headers": map[string]any{host: map[string]any{"headers": map[string]any{"X-A": map[string]string{"secret": "s"}, "Authorization": map[string]string{"secret": "s", "prefix": "Bearer "}}}},
	}, &box)
	flood, ended := make(chan struct{}), 0
	go func() {
		defer close(flood)
		w.MustSh(box.ID, fmt.Sprintf(`for way in --http1.1 --http2; do curl -sS $way "https://%s/[1-400]" -o /dev/null & done; wait`, host))
	}()
	for n := 1; ; n++ {
		call("PUT", "/v2/key-secrets/s", map[string]any{"value": value(n)}, nil)
		if ended = n; n < 20 {
			continue
		}
		select {
		case <-flood:
		default:
			continue
		}
		break
	}
	mu.Lock()
	if len(wrong) > 0 || seen < 800 {
		t.Errorf("%d requests, wrong: %q", seen, wrong[:min(len(wrong), 5)])
	}
	mu.Unlock()
	curl := fmt.Sprintf("curl -sS -o /dev/null -w '%%{http_code}' https://%s/; curl -sS https://%s/", host, host)
	if got := w.MustSh(box.ID, curl); !strings.HasPrefix(got, "200") || !strings.Contains(got, value(ended)) {
		t.Errorf("after the last change: %s", got)
	}
	call("DELETE", "/v2/key-secrets/s", nil, nil)
	if got := w.MustSh(box.ID, curl); !strings.HasPrefix(got, "502") || !strings.Contains(got, "secret_unavailable") {
		t.Errorf("after its deletion: %s", got)
	}
	call("POST", "/v2/key-secrets", map[string]any{"name": "s", "value": value(ended + 1), "hosts": []string{host}}, nil)
	if got := w.MustSh(box.ID, curl); !strings.HasPrefix(got, "200") {
		t.Errorf("stored again: %s", got)
	}
	if err := w.Client.Do(t.Context(), "DELETE", "/v2/api-keys/"+key.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.MustSh(box.ID, curl); !strings.HasPrefix(got, "502") {
		t.Errorf("after the end of the key: %s", got)
	}
	data, err := os.ReadFile(filepath.Join(w.Dir, "state", "boxgate.db"))
	if err != nil || strings.Contains(string(data), "value-of-the-key") {
		t.Errorf("the store shows a value, or %v", err)
	}
}
