package server

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/stream"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestKeysAreRotated(t *testing.T) {
	t.Parallel()
	f := serve(t)
	if a := f.Call(t, "POST", "/v2/store/rotate-key", `{"new_passphrase":"correct horse"}`); a.StatusCode != 200 || f.host.Passphrase != "correct horse" || strings.Contains(a.Text, "horse") {
		t.Errorf("%s %s, passphrase %q", a.Status, a.Text, f.host.Passphrase)
	}
	if a := f.Call(t, "POST", "/v2/store/rotate-key", `{}`); a.StatusCode != 200 || f.host.Passphrase != "" {
		t.Errorf("%s %s, passphrase %q", a.Status, a.Text, f.host.Passphrase)
	}
	if a := f.Call(t, "POST", "/v2/api-key/rotate", `{"grace":"90m"}`); a.StatusCode != 200 || f.host.Grace != 90*time.Minute {
		t.Errorf("%s %s, grace %v", a.Status, a.Text, f.host.Grace)
	}
	if a := f.Call(t, "POST", "/v2/api-key/rotate", `{}`); a.StatusCode != 200 || f.host.Grace != 0 {
		t.Errorf("%s %s, grace %v", a.Status, a.Text, f.host.Grace)
	}
	f.host.Grace = -1
	for _, grace := range []string{"-1s", "721h", "soon", "1"} {
		a := f.Call(t, "POST", "/v2/api-key/rotate", `{"grace":"`+grace+`"}`)
		if a.StatusCode != 422 || a.JSON(t)["pointer"] != "/grace" || f.host.Grace != -1 {
			t.Errorf("grace %s: %s %s", grace, a.Status, a.Text)
		}
	}
}

// Requests in progress end when their key is revoked.
func TestAStreamEndsWithItsKey(t *testing.T) {
	t.Parallel()
	var ended atomic.Bool
	asked := make(chan struct{}, 1000)
	f := serve(t, func(cfg *Config) {
		find := cfg.FindKey
		cfg.FindKey = func(key string) (api.Caller, bool) {
			asked <- struct{}{}
			caller, ok := find(key)
			return caller, ok && !ended.Load()
		}
	})
	f.Call(t, "POST", "/v2/box", `{"name":"b"}`)
	<-asked

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin := func(method, path, body string) *http.Response { // nil on failure
		req, err := http.NewRequestWithContext(ctx, method, f.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return nil
		}
		req.Header.Set("X-Box-Api-Key", apitest.Key)
		req.Header.Set("Accept", stream.NDJSON)
		res, err := f.Client().Do(req)
		if err != nil {
			t.Error(err)
			return nil
		}
		return res
	}
	stream := begin("GET", "/v2/egress?follow=true", "")
	if stream == nil {
		t.FailNow()
	}
	defer stream.Body.Close()
	exec := make(chan *http.Response, 1)
	go func() { exec <- begin("POST", "/v2/box/b/exec", `{"command":["sleep","1000"]}`) }()
	for range 6 { // the key is checked at the start of a request and periodically while it runs
		select {
		case res := <-exec:
			t.Fatalf("the command ended while the key worked: %s", res.Status)
		case <-asked:
		}
	}
	ended.Store(true)
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); { // until it ends
	}
	res := <-exec
	if ctx.Err() != nil || res == nil {
		t.Fatal("what was begun with the key goes on without it")
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("the command under way was answered %s", res.Status)
	}
}

// TestStatus: boxes are counted by state and denials by reason. One event can stand for many denials.
func TestStatus(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{"name":"one"}`)
	f.create(t, `{"name":"two"}`)
	now := time.Now()
	f.host.Decisions = []audit.Event{
		{Seq: 1, Time: now.Add(-time.Hour), Reason: name.ReasonNotAllowed},
		{Seq: 2, Time: now, Reason: name.ReasonNotAllowed},
		{Seq: 3, Time: now, Reason: name.ReasonNotAllowed, Count: 40, Box: "box2", BoxName: "two"},
		{Seq: 4, Time: now, Box: "box1", Reason: name.ReasonProtectedRange},
		{Seq: 5, Time: now, Verdict: policy.Allow, Reason: name.ReasonAllowAll},
	}
	a := f.Call(t, "GET", "/v2/gateway", "")
	var got struct {
		Version, StartedAt string
		Boxes              map[string]int
		Denials            struct {
			Seconds, Total int
			Reasons        map[string]int
			Boxes          []struct {
				ID, Name string
				Total    int
			}
		}
	}
	if err := json.Unmarshal([]byte(a.Text), &got); err != nil || a.StatusCode != 200 || got.Version == "" {
		t.Fatal(a.Status, a.Text, err)
	}
	if got.Boxes["idle"] != 2 || got.Denials.Total != 42 || got.Denials.Reasons["not_allowed"] != 41 || got.Denials.Reasons["protected_range"] != 1 || got.Denials.Seconds != 600 {
		t.Error(a.Text)
	}
	if by := got.Denials.Boxes; len(by) != 2 || by[0].Name != "two" || by[0].Total != 40 || by[1].ID != "box1" || by[1].Total != 1 {
		t.Error(a.Text)
	}
}
