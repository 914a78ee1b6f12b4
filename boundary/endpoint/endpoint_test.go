package endpoint

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/policy"
	"boxgate/policy/name"
)

// memory is a Host with fixed answers that records its calls.
type memory struct {
	off      bool
	limited  bool
	replaced bool
	asked    []api.ApprovalRequest
	boxes    []policy.BoxID
	events   []audit.Event
}

func (m *memory) Asks(policy.BoxID) bool  { return !m.off }
func (m *memory) Allow(policy.BoxID) bool { return !m.limited }
func (m *memory) Asked(_ policy.BoxID, d boundary.Denial) string {
	if d.Host == "asked.example" {
		return "one"
	}
	return ""
}
func (m *memory) Serves(context.Context) bool { return !m.replaced }
func (m *memory) Boundary(_ context.Context, id policy.BoxID) (boundary.Policy, error) {
	m.boxes = append(m.boxes, id)
	return boundary.Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Version: 7}, nil
}
func (m *memory) Denials(context.Context, policy.BoxID) ([]audit.Event, error) { return m.events, nil }
func (m *memory) Ask(_ context.Context, id policy.BoxID, r api.ApprovalRequest) (api.Approval, bool, error) {
	m.boxes, m.asked = append(m.boxes, id), append(m.asked, r)
	return api.Approval{ID: "one", Host: r.Host, Port: r.Port, Reason: r.Reason, State: api.ApprovalOpen, By: "security", Key: "key_1"}, true, nil
}
func (m *memory) Approvals(context.Context, policy.BoxID) ([]api.Approval, error) { return nil, nil }
func (m *memory) Approval(context.Context, policy.BoxID, string) (api.Approval, error) {
	return api.Approval{}, api.ErrNotFound
}
func (m *memory) Wait(context.Context, policy.BoxID, string) (api.Approval, error) {
	return api.Approval{State: api.ApprovalOpen}, nil
}
func (m *memory) CA(context.Context, policy.BoxID) ([]byte, error) { return []byte("PEM"), nil }

// call makes a request of the box b1.
func call(m *memory, method, path, kind, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+boundary.Host+path, strings.NewReader(body))
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	w := httptest.NewRecorder()
	New(m).ServeBox(&policy.Box{ID: "b1"}, w, r)
	return w
}

// TestEndpoint: status and body of each request.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	m := &memory{}
	for _, c := range []struct {
		method, path, kind, body string
		status                   int
		has                      string
	}{
		{"GET", "/v1/policy", "", "", 200, `"deny-all"`},
		{"GET", "/v1/ca", "", "", 200, "PEM"},
		{"GET", "/ca.pem", "", "", 200, "PEM"},
		{"GET", "/AGENTS.md", "", "", 200, boundary.URL},
		{"GET", "/v1/denials", "", "", 200, `"denials": []`},
		{"GET", "/v1/requests", "", "", 200, `"requests": []`},
		{"GET", "/v1/requests/none", "", "", 404, "Not Found"},
		{"GET", "/v1/requests/none/wait?timeout=0", "", "", 200, `"open"`},
		{"GET", "/v1/requests/none/wait?timeout=x", "", "", 422, "timeout"},
		{"POST", "/v1/requests", "application/json", `{"host":"a.example","reason":"x\u202e\u009b"}`, 201, `x\u202e\u009b`},
		{"POST", "/v1/requests", "text/plain", `{}`, 415, "application/json"},
		{"POST", "/v1/requests", "", `{}`, 415, "application/json"},
		{"POST", "/v1/requests", "application/json", `{"hosts":"a.example"}`, 422, "host"},
		{"POST", "/v1/requests", "application/json", `{"host":"a.example","expires_in":0}`, 422, "expires_in"},
		{"POST", "/v1/requests", "application/json", `"` + strings.Repeat("x", mostBody) + `"`, 413, "16 KiB"},
		{"PUT", "/v1/policy", "", "", 405, ""},
		{"GET", "/", "", "", 404, ""},
		{"GET", "/v2/box", "", "", 404, ""},
	} {
		if got := call(m, c.method, c.path, c.kind, c.body); got.Code != c.status || !strings.Contains(got.Body.String(), c.has) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, got.Code, got.Body)
		}
	}
	for _, id := range m.boxes {
		if id != "b1" {
			t.Error("asked for", id)
		}
	}
	if got := call(m, "POST", "/v1/requests", "application/json", `{"host":"a.example","reason":"x"}`); strings.Contains(got.Body.String(), "security") || strings.Contains(got.Body.String(), "key_1") {
		t.Error("the box learns who answers:", got.Body)
	}
	m.limited = true
	if got := call(m, "GET", "/v1/policy", "", ""); got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" {
		t.Error(got.Code, got.Header())
	}
	m.off = true
	if got := call(m, "GET", "/v1/policy", "", ""); got.Code != http.StatusForbidden {
		t.Error("although it is off:", got.Code)
	}
}

// TestDenialsLeadOn: a denial has next steps that open it, if an approval can, and the fields that identify it.
func TestDenialsLeadOn(t *testing.T) {
	t.Parallel()
	m := &memory{events: []audit.Event{
		{Time: time.Unix(1, 0), Stage: policy.StageHTTP, Name: "a.example", Port: 8080, Method: "GET", Path: "/x", Reason: name.ReasonNotAllowed},
		{Time: time.Unix(1, 0), Stage: policy.StageHTTP, Name: "asked.example", Port: 443, Method: "GET", Path: "/x", Reason: name.ReasonNotAllowed},
		{Time: time.Unix(1, 0), Stage: policy.StageHTTP, Name: "a.example", Port: 443, Method: "DELETE", Path: "/x", Reason: name.ReasonRequestRule, Rule: "deny a.example mcp"},
		{Time: time.Unix(1, 0), Stage: policy.StageHTTP, Name: "a.example", Port: 443, Reason: name.ReasonNotAllowed, Rule: "policy.ceiling"},
		{Time: time.Unix(2, 0), Stage: policy.StageDNS, Name: "b.example", Reason: name.ReasonDeniedDomain, Rule: "*.example"},
	}}
	var got struct {
		Denials []struct {
			Host, Reason string
			Port         uint16
			NextSteps    []string `json:"next_steps"`
		}
	}
	if err := json.Unmarshal(call(m, "GET", "/v1/denials", "", "").Body.Bytes(), &got); err != nil || len(got.Denials) != 5 {
		t.Fatal(err, got)
	}
	if steps := strings.Join(got.Denials[0].NextSteps, "\n"); !strings.Contains(steps, `"host":"a.example","port":8080`) || !strings.Contains(steps, boundary.URL+"/v1/requests") {
		t.Error(steps)
	}
	if steps := strings.Join(got.Denials[1].NextSteps, "\n"); !strings.Contains(steps, boundary.URL+"/v1/requests/one/wait") || strings.Contains(steps, "POST") {
		t.Error(steps)
	}
	for _, d := range got.Denials[2:] {
		if steps := strings.Join(d.NextSteps, "\n"); !strings.Contains(steps, "Do not repeat") || strings.Contains(steps, "POST") {
			t.Error(steps)
		}
	}
}

// TestAReplacedProcessSendsTheBoxOn: a process that was replaced refuses requests so that the box makes them again on another connection.
func TestAReplacedProcessSendsTheBoxOn(t *testing.T) {
	t.Parallel()
	m := &memory{replaced: true}
	for _, path := range []string{"/v1/policy", "/v1/requests", "/v1/requests/one/wait"} {
		if got := call(m, "GET", path, "", ""); got.Code != http.StatusServiceUnavailable || got.Header().Get("Connection") != "close" || got.Header().Get("Retry-After") == "" {
			t.Error(path, got.Code, got.Header())
		}
	}
	if len(m.boxes) > 0 {
		t.Error("the data was used")
	}
}

// FuzzEndpoint: no request panics, answers are JSON without characters outside ASCII, and a request that is stored has been read
// completely: without fields that the box has sent beyond the known ones.
func FuzzEndpoint(f *testing.F) {
	f.Add("GET", "/v1/policy", "")
	f.Add("POST", "/v1/requests", `{"host":"a.example","port":443,"reason":"x","expires_in":1}`)
	f.Add("POST", "/v1/requests", `{"host":"a.example","method":"DELETE","path":"/x/*","reason":"x"}`)
	f.Add("GET", "/v1/requests/x/wait?timeout=0", "")
	f.Add("POST", "/v1/requests", "{\"host\":\"\u202e\",\"reason\":\"\\u0000\"}")
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if !strings.HasPrefix(path, "/") {
			return
		}
		r, err := http.NewRequest(method, "http://"+boundary.Host+path, strings.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", "application/json")
		m, w := &memory{}, httptest.NewRecorder()
		New(m).ServeBox(&policy.Box{ID: "b1"}, w, r)
		if strings.Contains(w.Header().Get("Content-Type"), "json") && !json.Valid(w.Body.Bytes()) {
			t.Errorf("no JSON: %q", w.Body)
		}
		for _, b := range w.Body.Bytes() {
			if b >= 0x7f {
				t.Fatalf("%q", w.Body)
			}
		}
		if len(m.asked) > 0 && (method != http.MethodPost || w.Code != http.StatusCreated || !json.Valid([]byte(body))) {
			t.Errorf("stored: %s %s %q: %d", method, path, body, w.Code)
		}
	})
}
