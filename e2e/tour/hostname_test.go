package tour

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// previews lists the public URLs of a box as the API shows them.
func previews(w *harness.World, box string) (list struct {
	Previews []struct {
		Port      uint16
		Hostnames []string
	}
}) {
	w.T.Helper()
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box, "preview"), &list); err != nil {
		w.T.Fatal(err)
	}
	return list
}

// statusOf returns the HTTP status of an API error, or 201 for nil.
func statusOf(err error) int {
	if refused, ok := errors.AsType[*api.ResponseError](err); ok {
		return refused.Status
	}
	if err != nil {
		return -1
	}
	return http.StatusCreated
}

// TestOwnDomains opens a public URL by its own domain, over both versions of HTTP, across a restart, until it is
// deleted. No other URL can take the domain, and no URL can take a name below the gateway's domain.
func TestOwnDomains(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	deny := map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}
	box, other := w.Create(deny), w.Create(deny)
	serveInBox(w, box, "8000")
	create := func(box string, hostnames ...string) int {
		return statusOf(w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "hostnames": hostnames}, nil))
	}
	if out, code := w.GatewayCommand("url", "create", box, "8000", "--hostname", "App.Example.org.", "--hostname", "www.example.org"); code != 0 || !strings.Contains(out, "app.example.org") {
		t.Fatal(code, out)
	}
	if list := previews(w, box).Previews; len(list) != 1 || !slices.Equal(list[0].Hostnames, []string{"app.example.org", "www.example.org"}) {
		t.Errorf("listed are %+v", list)
	}
	for name, want := range map[string]int{
		"app.example.org": 409, "www.example.org": 409, other + "-9.preview.localhost": 422, "a.b.preview.localhost": 422, "preview.localhost": 422,
		strings.Repeat("a.", 118) + "example.org": 422,
	} {
		if status := create(other, "fine.example.org", name); status != want {
			t.Errorf("another box asks for %s: %d, want %d", name, status, want)
		}
	}
	c1, c2 := visitor(w), visitor(w)
	c2.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	opens := func(when string) {
		t.Helper()
		for version, c := range map[int]*http.Client{1: c1, 2: c2} {
			c.CloseIdleConnections()
			resp, err := c.Get("https://app.example.org/")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || resp.ProtoMajor != version || !strings.Contains(string(body), "Host: app.example.org") {
				t.Errorf("%s, HTTP/%d: HTTP/%d %d %s, %v", when, version, resp.ProtoMajor, resp.StatusCode, body, err)
			}
		}
	}
	opens("made")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	opens("after a restart")
	if status := create(other, "app.example.org"); status != 409 {
		t.Errorf("another box asks after a restart: %d", status)
	}
	if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "preview", "8000"), nil, nil); err != nil {
		t.Fatal(err)
	}
	c1.CloseIdleConnections()
	if _, err := c1.Get("https://app.example.org/"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the URL is deleted, its domain is still served: %v", err)
	}
	if status := create(other, "app.example.org"); status != 201 {
		t.Errorf("another box asks when the domain is free: %d", status)
	}
}
