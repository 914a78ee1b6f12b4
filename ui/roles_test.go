package ui

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

// asked is one request of the dashboard to the API, with the status of its answer.
type asked struct {
	method, path string
	status       int
}

// calls keeps the requests of the dashboard to the API.
type calls struct {
	http.Handler
	mu   sync.Mutex
	list []asked
}

// ServeHTTP implements [http.Handler].
func (c *calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &status{ResponseWriter: w}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = append(c.list, asked{r.Method, r.URL.Path, seen.code})
	}()
	c.Handler.ServeHTTP(seen, r)
}

// take returns the requests since the last call.
func (c *calls) take() []asked {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// status keeps the status of an answer.
type status struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements [http.ResponseWriter].
func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap lets [http.ResponseController] reach the response.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// onlyReads are the ends of paths whose POST requests compute an answer, and change nothing.
var onlyReads = []string{"/explain", "/replay", "/learn"}

// TestFormsOfRoles sends each form of each page, and opens each page, as each role: a role that may not change anything changes
// nothing and is told so, and no role makes a page fail.
func TestFormsOfRoles(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.host.Add(t, api.CreateRequest{Name: "mine", CreatedBy: "key_creator"})
	through := &calls{Handler: g.ui.API}
	g.ui.API = through
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{}
	for _, role := range api.Roles {
		g.host.Keys["secret-of-"+string(role)] = api.Key{Caller: api.Caller{Key: "key_" + string(role), Name: string(role), Role: role, Box: policy.BoxID(id)}}
	}
	g.host.Mu.Unlock()
	for _, role := range api.Roles {
		b := g.as(t, "secret-of-"+string(role))
		b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		_, page := b.get(t, "/ui/no-such-page")
		token := tokenOf(t, page)
		for _, rt := range g.ui.routes() {
			method, pattern, _ := strings.Cut(rt.pattern, " ")
			path := strings.NewReplacer("{id}", id, "{$}", "", "{seq}", "1-1", "{name}", "x", "{version}", "1").Replace(pattern)
			if strings.HasSuffix(path, "/live") {
				continue
			}
			through.take()
			var resp *http.Response
			if method == http.MethodGet {
				resp, page = b.get(t, path)
			} else {
				resp, page = b.post(t, path, url.Values{"token": {token}, "host": {"www.example.com"}, "port": {"443"}, "policy": {`{"mode":"allow-all"}`}, "version": {"1"}, "confirm": {"yes"}})
			}
			if resp.StatusCode >= http.StatusInternalServerError {
				t.Errorf("%s: %s: %s %s", role, rt.pattern, resp.Status, page)
			}
			if role != api.RoleReader && role != api.RoleAuditor {
				continue
			}
			for _, c := range through.take() {
				reads := c.method == http.MethodGet
				for _, end := range onlyReads {
					reads = reads || strings.HasSuffix(c.path, end)
				}
				if !reads && c.status != http.StatusForbidden && c.status != http.StatusNotFound {
					t.Errorf("%s: %s: the API answers %s %s with %d", role, rt.pattern, c.method, c.path, c.status)
				}
			}
			if method == http.MethodPost && resp.StatusCode == http.StatusSeeOther {
				t.Errorf("%s: %s: the page says that it is done", role, rt.pattern)
			}
		}
	}
}
