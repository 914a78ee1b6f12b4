package peerapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api/problem"
	"boxgate/fleet/pki"
)

// TestUnreachable: a host is unreachable after a call without an answer, until it answers, or for five minutes. A refused call does not count.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	o := outcomes{hosts: map[string]experience{}}
	now := func() bool { return o.of("b").unreachable(time.Now()) }
	if o.add("b", refused); now() || !o.of("b").answered.IsZero() {
		t.Error("unreachable after a refusal")
	}
	if o.add("b", unreachable); !now() || o.of("b").unreachable(time.Now().Add(forgetAfter+time.Second)) || o.of("c").unreachable(time.Now()) {
		t.Error("after a call without an answer")
	}
	if o.add("b", answered); now() || o.of("b").answered.IsZero() {
		t.Error("after an answer")
	}
	if o.counts != [results]uint64{1, 1, 1} {
		t.Errorf("%v", o.counts)
	}
	for err, want := range map[error]result{
		errors.New("connection reset"): unreachable, context.DeadlineExceeded: unreachable, &refusedError{"too many"}: refused, problem.Unreachable("b", "left"): refused,
	} {
		if got := resultOf(err); got != want {
			t.Errorf("%v: %d", err, got)
		}
	}
}

// stranger is a host that knows no other.
type stranger struct{}

// Peers implements [Identity].
func (stranger) Peers() pki.Peers { return pki.Peers{} }

// TestRefusedCallsAreCounted: a call that does not come from a member does not reach the API, and is counted.
func TestRefusedCallsAreCounted(t *testing.T) {
	t.Parallel()
	c := &Client{}
	s := NewServer(ServerConfig{Fleet: stranger{}, API: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the call reached the API") }), Most: 100, Refused: c.CountRefused, Log: zap.NewNop()})
	r := httptest.NewRequest(http.MethodGet, "/v2/box", nil)
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	if s.Handler.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable || c.turnedAway.Load() != 1 {
		t.Errorf("%d, %d calls counted", w.Code, c.turnedAway.Load())
	}
}
