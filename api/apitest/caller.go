package apitest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/api"
)

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
