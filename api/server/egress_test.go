package server

import (
	"strings"
	"testing"
	"time"

	"boxgate/api/apitest"
	"boxgate/policy"
)

// A follower receives past and then new decisions, each once, and the number of lost ones.
func TestFollow(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := policy.BoxID(f.create(t, `{}`))
	f.host.AddDecision(apitest.Decision(id, 100, "past.example", policy.Allow))
	resp := f.stream(t, "/v2/box/box1/egress?follow=true", "")
	read(t, resp.Body, "past.example")
	again := apitest.Decision(id, 100, "past.example", policy.Allow)
	again.Seq = 1
	f.host.AddDecision(again)
	f.host.AddDecision(apitest.Decision(id, 200, "later.example", policy.Deny))
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
