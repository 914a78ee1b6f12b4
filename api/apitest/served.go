package apitest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Bodies is the limit on request bodies in tests.
var Bodies = strict.Bodies{Most: 1 << 20}

// Served is a running test server with some endpoints.
type Served struct {
	Caller
	Log *observer.ObservedLogs

	mu      sync.Mutex
	changes []string
}

// Serve serves routes until the test ends. It accepts the keys of the host and enforces their roles.
func Serve(t testing.TB, host *Host, routes []rest.Route) *Served {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	s := &Served{Log: logs}
	answers, mux := rest.Answerer{Log: zap.New(core)}, http.NewServeMux()
	for _, rt := range routes {
		serve := answers.Serve(rt)
		mux.HandleFunc(rt.Pattern(), func(w http.ResponseWriter, r *http.Request) {
			if err := access.Permit(r, rt.ID, host, host); err != nil && !rt.Public {
				answers.Fail(w, r, err)
				return
			}
			serve.ServeHTTP(w, r)
		})
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := &rest.Writer{ResponseWriter: rw, Record: s.record}
		defer answers.Recover(w, r)
		caller, known := host.FindKey(r.Header.Get(api.KeyHeader))
		if !known {
			answers.Fail(w, r, problem.Refuse(http.StatusUnauthorized, "a valid API key is required"))
			return
		}
		ctx := access.WithCredential(api.WithCaller(r.Context(), caller), func() bool {
			now, valid := host.FindKey(r.Header.Get(api.KeyHeader))
			return valid && now == caller
		})
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(s.Close)
	t.Cleanup(host.End) // runs first, because a handler may wait for its command
	return s
}

// record collects the change made by a request.
func (s *Served) record(_ int, change *rest.Change) error {
	if change == nil {
		return nil
	}
	data, err := json.Marshal(change.What)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, string(change.Box)+" "+string(data))
	return err
}

// Changes returns the changes made by requests in the form of the audit trail: the ID of the box, a space, and JSON.
func (s *Served) Changes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.changes...)
}

// Caller calls a test server of the API.
type Caller struct {
	*httptest.Server
}

// Answer is a response with its body.
type Answer struct {
	*http.Response
	Text string
}

// JSON returns the object in the body.
func (a Answer) JSON(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.Text), &v); err != nil {
		t.Fatalf("%s: %q: %v", a.Status, a.Text, err)
	}
	return v
}

// Call sends a request with the operator's key. edit may change the request.
func (c *Caller) Call(t testing.TB, method, path, body string, edit ...func(*http.Request)) Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, c.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(api.KeyHeader, Key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(req)
	}
	resp, err := c.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{resp, string(text)}
}

// Expect is Call, and fails the test unless the response has the status and contains the words.
func (c *Caller) Expect(t testing.TB, status int, method, path, body string, words ...string) Answer {
	t.Helper()
	got := c.Call(t, method, path, body)
	if got.StatusCode != status {
		t.Errorf("%s %s %.200s: %s %.2000s; want %d", method, path, body, got.Status, got.Text, status)
	}
	for _, w := range words {
		if !strings.Contains(got.Text, w) {
			t.Errorf("%s %s %.200s: %.2000s does not say %q", method, path, body, got.Text, w)
		}
	}
	return got
}

// With sets another key on a request.
func With(key string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(api.KeyHeader, key) }
}

// IfMatch makes a request conditional on a version.
func IfMatch(etag string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("If-Match", etag) }
}
