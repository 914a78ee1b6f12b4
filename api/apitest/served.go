package apitest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
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
		mux.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), caller)))
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
