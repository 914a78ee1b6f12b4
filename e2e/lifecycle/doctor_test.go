package lifecycle

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// TestNothingIsLeftOfADiagnosis: the boxes of a diagnosis are removed when it ends, and at the next start of a
// gateway that was killed. Only one diagnosis runs at a time.
func TestNothingIsLeftOfADiagnosis(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	if err := w.Net.AddHost("silent.example.com", "198.51.100.70"); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	if err := w.Net.ServeConns("silent.example.com", 443, func(c net.Conn) { // takes a request and answers only by its end
		_, _ = c.Read(make([]byte, 1))
		select {
		case <-t.Context().Done():
		case <-release:
		}
		_ = c.Close()
	}, "http/1.1"); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	path := api.BoxPath(box, "doctor")
	begin := func() (running func() error) {
		ended := make(chan error, 1)
		go func() {
			ended <- w.Client.Do(t.Context(), "POST", path, map[string]any{"host": "silent.example.com", "idle_seconds": 0}, nil)
		}()
		w.Until("its boxes exist", func() bool { return len(listed(w)) == 3 })
		return func() error { return <-ended }
	}
	gone := func(when string) {
		t.Helper()
		w.Until("no box is left "+when, func() bool { return len(listed(w)) == 1 })
		w.Until("no namespace is pinned "+when, func() bool {
			pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached"))
			return os.IsNotExist(err) || err == nil && len(pins) == 0
		})
		rules, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "ip link | grep -c 'alias boxgate box'")
		if n := strings.TrimSpace(rules); n != "1" {
			t.Errorf("%s: %s links (%v)", when, n, err)
		}
	}

	running := begin()
	w.Kill()
	if err := running(); err == nil {
		t.Error("the gateway was killed during the diagnosis, which succeeded")
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone("after a crash of the gateway")

	running = begin()
	refused := (*api.ResponseError)(nil)
	if err := w.Client.Do(t.Context(), "POST", path, map[string]any{"host": "api.example.com"}, nil); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("a second diagnosis: %v", err)
	}
	close(release)
	if err := running(); err != nil {
		t.Error(err)
	}
	gone("at its end")
}

// listed returns the IDs of all boxes.
func listed(w *harness.World) (ids []string) {
	var list []struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "GET", "/v2/box", nil, &list); err != nil {
		return nil
	}
	for _, b := range list {
		ids = append(ids, b.ID)
	}
	return ids
}
