package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/e2b"
	"boxgate/api/e2b/token"
)

// e2bKeys implements [token.Keys].
type e2bKeys struct{ *apitest.Host }

func (k e2bKeys) Owners(id string) (list []token.Owner) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for text, key := range k.Keys {
		if id == "" || key.Key == id {
			list = append(list, token.OwnerOf(key.Caller, text))
		}
	}
	if id == "" || id == api.OperatorKey {
		list = append(list, token.OwnerOf(api.Caller{Key: api.OperatorKey}, apitest.Key))
	}
	return list
}

func (k e2bKeys) Find(hash [sha256.Size]byte) (api.Caller, bool) { return k.FindHash(hash) }

// withE2B serves the dialect of E2B.
func withE2B(t testing.TB) func(*Config) {
	t.Helper()
	maker, err := token.NewMaker(bytes.Repeat([]byte{3}, token.SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		host, _ := c.Life.(*apitest.Host)
		c.E2B = &E2B{Maker: maker, Keys: e2bKeys{host}, Domain: "boxes.example", Images: []string{"default"}}
		c.Hosts = append(c.Hosts, "api.boxes.example")
	}
}

// asSDK makes a request one of E2B's SDK.
func asSDK(key string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(api.KeyHeader)
		r.Header.Set("X-API-KEY", key)
	}
}

const plainSandbox = `{"templateID":"base"}`

// TestE2BIsOff: without the switch, no path of the dialect is served. No path of boxgate's own API is also one of the dialect.
func TestE2BIsOff(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for _, rt := range f.api.routes {
		if e2b.IsControl(rt.Path) || e2b.IsSandbox(rt.Path) {
			t.Errorf("%s is a path of both APIs", rt.Path)
		}
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes", "/templates"} {
		if got := f.Call(t, "GET", path, ""); got.StatusCode != 404 {
			t.Errorf("%s: %s", path, got.Status)
		}
	}
	if got := f.Call(t, "GET", "/v2/box", "", asSDK(apitest.Key)); got.StatusCode != 401 {
		t.Errorf("E2B's header for the key: %s", got.Status)
	}
	if f.api.Control() != nil {
		t.Error("there is a handler of the control API")
	}
	if _, ok := f.api.Tokens().Check(t.Context(), "box1", "operator.x"); ok {
		t.Error("a token is accepted")
	}
}

// A key in E2B's header has the permissions that it has otherwise, and every refusal is in E2B's form.
func TestE2BKeys(t *testing.T) {
	t.Parallel()
	f := serve(t, withE2B(t))
	f.create(t, `{"name":"other"}`)
	creator, reader, one := f.key(t, `{"name":"ci","role":"box-creator"}`), f.key(t, `{"name":"eyes","role":"read-only"}`), f.key(t, `{"name":"one","role":"one-box","box":"other"}`)
	for what, tt := range map[string]struct {
		edit   func(*http.Request)
		status int
	}{
		"no key":               {func(r *http.Request) { r.Header.Del(api.KeyHeader) }, 401},
		"a wrong key":          {asSDK("x"), 401},
		"two keys":             {func(r *http.Request) { r.Header.Set("X-API-KEY", creator) }, 401},
		"the same twice":       {func(r *http.Request) { r.Header.Set("X-API-KEY", apitest.Key) }, 201},
		"a creator's":          {asSDK(creator), 201},
		"a reader's":           {asSDK(reader), 403},
		"one for a box":        {asSDK(one), 403},
		"of another site":      {func(r *http.Request) { asSDK(creator)(r); r.Header.Set("Origin", "https://evil.example") }, 403},
		"of another host name": {func(r *http.Request) { asSDK(creator)(r); r.Host = "evil.example" }, 421},
		"of the API's name":    {func(r *http.Request) { asSDK(creator)(r); r.Host = "api.boxes.example" }, 201},
	} {
		got := f.Call(t, "POST", "/v2/sandboxes", plainSandbox, tt.edit)
		var view struct {
			Code    int
			Message string
		}
		_ = json.Unmarshal([]byte(got.Text), &view)
		if got.StatusCode != tt.status || tt.status >= 400 && (view.Code != tt.status || view.Message == "") {
			t.Errorf("%s: %s %s", what, got.Status, got.Text)
		}
	}
	for key, want := range map[string]int{creator: 2, reader: 4, one: 1} {
		got := f.Call(t, "GET", "/v2/sandboxes", "", asSDK(key))
		if n := strings.Count(got.Text, `"sandboxID"`); n != want {
			t.Errorf("a key lists %d sandboxes, want %d: %s", n, want, got.Text)
		}
	}
	for method, path := range map[string]string{"GET": "/sandboxes/box1", "DELETE": "/sandboxes/box1", "POST": "/v2/sandboxes/box1/connect", "PUT": "/sandboxes/box1/network"} {
		if got := f.Call(t, method, path, "{}", asSDK(creator)); got.StatusCode != 404 {
			t.Errorf("%s of another key's box: %s %s", method, got.Status, got.Text)
		}
	}
}

// The token of a sandbox opens this box with the permissions of the key, and not once the key was revoked.
func TestE2BTokens(t *testing.T) {
	t.Parallel()
	f := serve(t, withE2B(t))
	key := f.key(t, `{"name":"ci","role":"box-creator"}`)
	got := f.Call(t, "POST", "/v2/sandboxes", plainSandbox, asSDK(key))
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(got.Text), &made); err != nil || got.StatusCode != 201 {
		t.Fatalf("%s %s", got.Status, got.Text)
	}
	box := f.create(t, `{}`)
	a, ok := f.api.Tokens().Check(t.Context(), "box1", made.EnvdAccessToken)
	if !ok || made.SandboxID != "box1" || a.Caller.Name != "ci" || !f.api.Tokens().Valid(t.Context(), a) {
		t.Errorf("the token of a sandbox: %+v %v", a, ok)
	}
	if _, ok := f.api.Tokens().Check(t.Context(), "box2", made.EnvdAccessToken); ok || box != "box2" {
		t.Error("the token opens another box")
	}
	if got := f.Call(t, "DELETE", "/v2/api-keys/ci", ""); got.StatusCode != 200 {
		t.Fatalf("%s %s", got.Status, got.Text)
	}
	if _, ok := f.api.Tokens().Check(t.Context(), "box1", made.EnvdAccessToken); ok || f.api.Tokens().Valid(t.Context(), a) {
		t.Error("the token of a revoked key is valid")
	}
}

// The audit trail has the calls of the API that a call of the dialect consists of, and its refusals.
func TestE2BIsInTheTrail(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t, withE2B(t))
	f.Call(t, "POST", "/v2/sandboxes", plainSandbox, asSDK(apitest.Key))
	f.Call(t, "DELETE", "/sandboxes/box1", "", asSDK(apitest.Key))
	f.Call(t, "POST", "/v2/sandboxes", plainSandbox, asSDK("wrong"))
	_, text := entries(t, dir)
	for _, want := range []string{`"route":"POST /v2/box"`, `"route":"DELETE /v2/box/{id}"`, `"route":"POST /v2/sandboxes"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the trail lacks %s: %s", want, text)
		}
	}
	if strings.Contains(text, apitest.Key) {
		t.Error("the trail has the key")
	}
}

// The handler for the name below the domain of public URLs serves the control API alone.
func TestE2BControlAlone(t *testing.T) {
	t.Parallel()
	f := serve(t, withE2B(t))
	h := f.api.Control()
	for path, want := range map[string]int{"/v2/sandboxes": 200, "/health": 200, "/v2/box": 404, "/v2/api-keys": 404, "/openapi.json": 404, "/healthz": 404, "/ui/": 404, "/files": 404, "/v2/box/../sandboxes": 404, "/sandboxes/../v2/box": 404, "/sandboxes/%2e%2e/v2/api-keys": 404} {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "api.boxes.example"
		asSDK(apitest.Key)(r)
		r.Header.Set(e2b.SandboxHeader, "box1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest("GET", "/v2/sandboxes", nil)
	r.Host = "api.boxes.example"
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("without a key: %d", w.Code)
	}
}
