package peerapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/api/problem"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
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

// TestStateWithoutEtcd: callers who ask for the state of the fleet at the same time wait for an etcd that does not answer once, and not one after
// the other. Its state is read again later, and after a change.
func TestStateWithoutEtcd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lastState{turn: make(chan struct{}, 1)}
		away := errors.New("etcd does not answer")
		slow := func(context.Context) (roster.State, error) {
			time.Sleep(10 * time.Second)
			return roster.State{}, away
		}
		began := time.Now()
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				if _, err := l.read(t.Context(), slow); !errors.Is(err, away) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("100 callers waited %v", took)
		}
		back := func(context.Context) (roster.State, error) { return roster.State{Name: "west"}, nil }
		l.changed(t.Context())
		if state, err := l.read(t.Context(), back); err != nil || state.Name != "west" {
			t.Errorf("%+v, %v", state, err)
		}
		time.Sleep(2 * stateFor)
		if _, err := l.read(t.Context(), slow); !errors.Is(err, away) {
			t.Error(err)
		}
		left, cancel := context.WithCancel(t.Context())
		time.Sleep(2 * stateFor)
		if _, err := l.read(left, func(ctx context.Context) (roster.State, error) { cancel(); return roster.State{}, ctx.Err() }); err == nil {
			t.Error("a caller left")
		}
		if _, err := l.read(t.Context(), back); err != nil {
			t.Errorf("a caller has left, and the next one has: %v", err)
		}
	})
}
