package tour

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// TestPublicURLWakesABox: a stranger's request does not wake a paused box; a request with the credential does, and is
// served.
func TestPublicURLWakesABox(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.HTTP = "127.0.0.1:80" })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	serveInBox(w, box, "8000")
	c := visitor(w)
	var url harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, &url); err != nil {
		t.Fatal(err)
	}
	token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+url.Token) }
	state := func() string {
		var view struct{ Status string }
		if err := w.Client.Get(t.Context(), api.BoxPath(box, "status"), &view); err != nil {
			t.Fatal(err)
		}
		return view.Status
	}
	for range 2 {
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
			t.Fatal(err)
		}
		for name, prepare := range map[string]func(*http.Request){
			"nothing": nil, "a wrong token": func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong") },
		} {
			if status, _ := visit(t, c, url.URL, prepare); status != 401 || state() != "paused" {
				t.Errorf("%s: %d, and the box is %s", name, status, state())
			}
		}
		if status, body := visit(t, c, url.URL, token); status != 200 || state() != "idle" {
			t.Errorf("with the token: %d %s, and the box is %s", status, body, state())
		}
	}
}

// TestPublicURLOfABoxThatEnded: the page reports that the box has stopped, not that it is starting. After a restart of
// the box it serves.
func TestPublicURLOfABoxThatEnded(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Ingress.HTTP = "127.0.0.1:80" })
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	c := visitor(w)
	var url harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &url); err != nil {
		t.Fatal(err)
	}
	if err := lab.KillAndAwait(w.InitOf(box)); err != nil {
		t.Fatal(err)
	}
	w.UntilStatus(box, "error")
	if status, body := visit(t, c, url.URL, nil); status != 502 || !strings.Contains(body, "has stopped because of an error") {
		t.Errorf("of a box that ended: %d %s", status, body)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil); err != nil {
		t.Fatal(err)
	}
	serveInBox(w, box, "8000")
	if status, body := visit(t, c, url.URL, nil); status != 200 {
		t.Errorf("started again: %d %s", status, body)
	}
}
