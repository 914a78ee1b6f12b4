package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/audit/trail"
)

// inside makes a request as the dashboard does for a session, with a key of another in its fields, which must not count.
func (f *fixture) inside(s access.Session, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set(api.KeyHeader, "sk-of-nobody")
	w := httptest.NewRecorder()
	f.api.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), s)))
	return w
}

// TestSessionsHaveTheRightsOfTheirKey: each endpoint answers a session of the dashboard as it answers the key of that session, for
// each role.
func TestSessionsHaveTheRightsOfTheirKey(t *testing.T) {
	t.Parallel()
	for role, may := range mayCall {
		own := mayCall[api.RoleBox]
		caller := api.Caller{Key: "key_x", Name: "x", Role: role, Box: "box1"}
		byKey, bySession := serve(t), serve(t)
		for _, f := range []*fixture{byKey, bySession} {
			f.create(t, `{}`)
			f.host.Mu.Lock()
			f.host.ByID["box1"].CreatedBy = "key_x"
			f.host.Keys = map[string]api.Key{"k": {Caller: caller}}
			f.host.Mu.Unlock()
		}
		s := access.Session{Caller: caller, Remote: "192.0.2.7", Valid: func() bool { return true }}
		for _, rt := range byKey.api.routes {
			permitted := may(rt) || role == api.RoleCreator && own(rt)
			if rt.Public || permitted && (rt.ID == "openSession" || strings.HasPrefix(rt.ID, "stream")) {
				continue
			}
			path := pathTo(rt, "box1")
			key, session := byKey.Call(t, rt.Method, path, "", apitest.With("k")), bySession.inside(s, rt.Method, path, "")
			if key.StatusCode != session.Code || key.StatusCode == http.StatusForbidden && key.Text != session.Body.String() {
				t.Errorf("role %q: %s %s: %s with the key, %d %s in a session", role, rt.Method, rt.Path, key.Status, session.Code, session.Body)
			}
			for _, f := range []*fixture{byKey, bySession} {
				f.host.Mu.Lock()
				if f.host.ByID["box1"] == nil {
					f.host.ByID["box1"] = &apitest.Box{Box: api.Box{ID: "box1", CreatedBy: "key_x"}, URLs: map[uint16]api.URL{}}
				}
				f.host.Mu.Unlock()
			}
		}
	}
}

// TestTrailOfTheDashboard: the trail has the sessions, and the changes made in them with the name of the person and the address of
// the browser. Refused sign-ins are bounded.
func TestTrailOfTheDashboard(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t)
	ann := api.Caller{Key: "sso_1", Name: "ann@example.org", Role: api.RoleAdmin}
	s := access.Session{Caller: ann, Remote: "192.0.2.7", Valid: func() bool { return true }}
	if w := f.inside(s, "POST", "/v2/box", `{"name":"web"}`); w.Code != http.StatusCreated {
		t.Fatal(w.Body)
	}
	r := httptest.NewRequest("GET", "/ui/oidc/callback?code=secret", nil)
	r.RemoteAddr = "192.0.2.7:4711"
	if err := f.api.RecordSession(r, "GET /ui/oidc/callback", ann, http.StatusSeeOther); err != nil {
		t.Fatal(err)
	}
	for range 3 * maxRefusals {
		if err := f.api.RecordSession(r, "POST /ui/sign-in", api.Caller{}, http.StatusUnauthorized); err != nil {
			t.Fatal(err)
		}
	}
	list, text := entries(t, dir)
	var made, signedIn, refused int
	for _, e := range list {
		switch {
		case e.Kind == trail.Refused:
			refused++
		case e.Key != "ann@example.org" || e.KeyID != "sso_1" || e.Role != "admin" || e.Remote != "dashboard, 192.0.2.7":
		case e.Kind == trail.Answer && e.Route == "POST /v2/box" && e.Status == http.StatusCreated:
			made++
		case e.Kind == trail.Answer && e.Route == "GET /ui/oidc/callback" && e.Status == http.StatusSeeOther:
			signedIn++
		}
	}
	if made != 1 || signedIn != 1 || refused != maxRefusals || strings.Contains(text, "secret") {
		t.Errorf("%d changes, %d sign-ins, %d refusals\n%s", made, signedIn, refused, text)
	}
}

// TestRequestsEndWithTheSession: a session that has ended makes no more requests, and one that takes long is cut.
func TestRequestsEndWithTheSession(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	var looked atomic.Int32
	s := access.Session{Caller: api.Caller{Key: "key_x", Name: "x", Role: api.RoleReader}, Valid: func() bool { return looked.Add(1) == 1 }} // when it is admitted
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := httptest.NewRequest("GET", "/v2/box/box1/egress?follow=true", nil).WithContext(access.WithCaller(ctx, s))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // a response that has begun is aborted
		f.api.ServeHTTP(httptest.NewRecorder(), r)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("a stream outlives its session")
	}
	if ctx.Err() != nil {
		t.Error("the stream was ended by the test")
	}
	if w := f.inside(s, "GET", "/v2/box", ""); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "sign in again") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := f.inside(access.Session{Caller: api.Caller{Role: api.RoleAdmin}}, "GET", "/v2/box", ""); w.Code < http.StatusBadRequest {
		t.Errorf("a session without Valid: %d", w.Code)
	}
}
