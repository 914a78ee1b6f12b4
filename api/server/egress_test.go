package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/stream"
	"boxgate/audit"
	"boxgate/policy"
)

func decision(box policy.BoxID, at int64, name string, verdict policy.Verdict) audit.Event {
	return audit.Event{Time: time.Unix(at, 0), Box: box, Stage: policy.StageConn, Name: name, Verdict: verdict, Reason: policy.ReasonNotAllowed}
}

func TestEgress(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	f.host.Tell(decision(id, 100, "first.example", policy.Allow))
	f.host.Tell(decision(id, 200, "second.example", policy.Deny))
	f.host.Tell(decision("other", 300, "third.example", policy.Deny))
	tests := []struct {
		path  string
		names string
	}{
		{"/v2/box/box1/egress", "first.example second.example"},
		{"/v2/egress", "first.example second.example third.example"},
		{"/v2/egress?denied=true", "second.example third.example"},
		{"/v2/box/box1/egress?since=150", "second.example"},
		{"/v2/box/box1/egress?since=1970-01-01T00:02:30Z", "second.example"},
		{"/v2/box/box1/egress?since=10m", ""},
	}
	for _, tt := range tests {
		got := f.Call(t, "GET", tt.path, "")
		var names []string
		for line := range strings.Lines(got.Text) {
			var e audit.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %q: %v", tt.path, line, err)
			}
			names = append(names, e.Name)
		}
		if strings.Join(names, " ") != tt.names || got.Header.Get("Content-Type") != stream.NDJSON {
			t.Errorf("%s: %q, want %q", tt.path, names, tt.names)
		}
	}
	lines := 0
	err := api.NewClient(f.URL, apitest.Key).Lines(t.Context(), "/v2/egress", func([]byte) error { lines++; return nil })
	if err != nil || lines != 3 {
		t.Errorf("the client reads %d lines: %v", lines, err)
	}
	sse := f.Call(t, "GET", "/v2/box/box1/egress?since=150", "", func(r *http.Request) { r.Header.Set("Accept", stream.EventStream) })
	if sse.Header.Get("Content-Type") != stream.EventStream || !strings.HasPrefix(sse.Text, "event: decision\ndata: {") || !strings.HasSuffix(sse.Text, "}\n\n") {
		t.Errorf("%q", sse.Text)
	}
	for _, bad := range []string{"since=yesterday", "follow=maybe", "denied=2", "box=box1", "follow=true&follow=true"} {
		if got := f.Call(t, "GET", "/v2/box/box1/egress?"+bad, ""); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
}

// A follower gets past and then new decisions, each once, and is told what it missed.
func TestFollow(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	f.host.Tell(decision(id, 100, "past.example", policy.Allow))
	resp := f.stream(t, "/v2/box/box1/egress?follow=true", "")
	read(t, resp.Body, "past.example")
	again := decision(id, 100, "past.example", policy.Allow)
	again.Seq = 1
	f.host.Tell(again)
	f.host.Tell(decision(id, 200, "later.example", policy.Deny))
	got := read(t, resp.Body, "later.example")
	if strings.Contains(got, "past.example") || !strings.Contains(got, `{"lost":3}`) {
		t.Errorf("%q", got)
	}
	done := make(chan error, 1)
	go func() { done <- f.Config.Shutdown(t.Context()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a follower holds up the shutdown")
	}
}

// A client that reconnects says what it has, gets the rest, and is told if that may be incomplete.
func TestResume(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	for i, name := range []string{"a.example", "b.example", "c.example"} {
		f.host.Tell(decision(id, int64(100+i), name, policy.Allow))
	}
	for after, want := range map[string]string{
		"run1-2": "c", "run1-3": "", "run1-0": "gap abc", "run0-2": "gap abc",
	} {
		got := f.Call(t, "GET", "/v2/egress?after="+after, "")
		var seen string
		if strings.Contains(got.Text, `{"gap":"`) {
			seen = "gap "
		}
		for _, name := range []string{"a", "b", "c"} {
			if strings.Contains(got.Text, name+".example") {
				seen += name
			}
		}
		if seen != want || got.Header.Get("Boxgate-Run") != "run1" {
			t.Errorf("after %s: %s, want %q", after, got.Text, want)
		}
	}
	for _, bad := range []string{"3", "-3", "run1-", "run1-x"} {
		if got := f.Call(t, "GET", "/v2/egress?after="+bad, ""); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
}

// The name that a box gives cannot control the terminal of someone who reads its decisions, or break a line.
func TestEgressIsEscaped(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	name := "a\x1b[2J\nb\u009b31m\x7f\u202ec\u2028"
	f.host.Tell(decision(id, 100, name, policy.Deny))
	got := f.Call(t, "GET", "/v2/box/box1/egress", "")
	if strings.Count(got.Text, "\n") != 1 || strings.ContainsAny(strings.TrimSuffix(got.Text, "\n"), "\x1b\x7f\u009b\u202e\u2028\n") {
		t.Errorf("%q", got.Text)
	}
	var e audit.Event
	if err := json.Unmarshal([]byte(got.Text), &e); err != nil {
		t.Error(err)
	}
}
