package host

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/e2b"
	"boxgate/host/handover"
)

// Requests that act inside a box do not delay an upgrade. Requests that change the store do, whatever their path
// contains.
func TestWhatChangesTheStore(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]bool{
		"GET /v2/box/b/config/network-policy": false, "HEAD /v2/box/b": false,
		"POST /v2/box/b/exec": false, "POST /v2/box/b/exec-stream": false, "POST /v2/box/b/exec-detached": false, "POST /v2/box/b/code": false, "POST /v2/box/b/run/stream": false,
		"POST /v2/box/b/git/clone": false, "POST /v2/box/b/git/exec": false, "POST /v2/box/b/git/push": false, "POST /v2/box/b/git/create-pr": false,
		"POST /v2/box/b/files/write": false, "POST /v2/box/b/files/unpack": false, "POST /v2/box/b/selftest": false, "POST /v2/box/b/egress/explain": false,
		"POST /v2/box": true, "PUT /v2/box/b/config/network-policy": true, "PUT /v2/box/b/config/git": true, "PUT /v2/box/b/git-config": true,
		"PUT /v2/box/settings/env/exec": true, "DELETE /v2/box/settings/env/run": true, "POST /v2/box/settings/exec": true, "DELETE /v2/box/exec": true,
		"POST /v2/box/b/schedules/run": true, "DELETE /v2/box/b/config/labels/exec": true, "POST /v2/box/b/snapshots": true, "POST /v2/store/rotate-key": true,
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := changesState(httptest.NewRequestWithContext(t.Context(), method, path, nil)); got != want {
			t.Errorf("%s: %v", request, got)
		}
	}
	for path, want := range map[string]bool{"/process.Process/Start": false, "/files": false, "/v2/sandboxes": true, "/v2/box": true} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
		r.Header.Set(e2b.SandboxHeader, "box1")
		if got := changesState(r); got != want {
			t.Errorf("POST %s of E2B's dialect: %v", path, got)
		}
	}
}

// TestAKeyThatChangesForgetsNoOther: in a process that drains, the keys seen valid remain so, except the one that the successor has changed.
func TestAKeyThatChangesForgetsNoOther(t *testing.T) {
	t.Parallel()
	known := map[[32]byte]api.Key{}
	digests := map[string][32]byte{}
	for _, id := range []string{"a", "b", "c"} {
		digests[id] = sha256.Sum256([]byte(id))
		known[digests[id]] = api.Key{Caller: api.Caller{Key: id, Role: api.RoleAdmin}}
	}
	turn := &adminTurn{lookUp: func(hash [32]byte) (api.Key, bool) { k, ok := known[hash]; return k, ok }}
	h := &Host{turn: turn, parts: &parts{}}
	valid := func() (valid string) {
		for _, id := range []string{"a", "b", "c"} {
			if _, ok := turn.findHash(digests[id]); ok {
				valid += id
			}
		}
		return valid
	}
	if got := valid(); got != "abc" {
		t.Fatal(got)
	}
	clear(known) // the successor has the store
	turn.passed = true
	for _, step := range []struct{ changed, want string }{{"b", "ac"}, {"b", "ac"}, {"never", "ac"}, {"", ""}} {
		h.executeOrder(handover.Message{Kind: handover.Keys, APIKey: step.changed})
		if got := valid(); got != step.want {
			t.Errorf("after a change of %q: %q, want %q", step.changed, got, step.want)
		}
	}
}

// TestAKeyThatIsRevokedWhileItIsLookedUp: it is not remembered, or it would be valid again after a handover.
func TestAKeyThatIsRevokedWhileItIsLookedUp(t *testing.T) {
	t.Parallel()
	turn, revoked := &adminTurn{}, true
	turn.lookUp = func([32]byte) (api.Key, bool) {
		if revoked { // after it was found
			turn.forgetKey("key_a")
		}
		return api.Key{Caller: api.Caller{Key: "key_a"}}, true
	}
	for _, revoked = range []bool{true, false} {
		if _, ok := turn.findHash([32]byte{1}); !ok {
			t.Error("a key that is found is refused")
		}
		turn.passed = true
		if _, ok := turn.findHash([32]byte{1}); ok == revoked {
			t.Errorf("after the handover a key that was revoked: %v is valid: %v", revoked, ok)
		}
		turn.passed = false
	}
}

// A client that sends the body of a change slowly does not delay a handover. A client that waits for its response is not
// disturbed.
func TestASlowBodyDoesNotKeepTheTurn(t *testing.T) {
	t.Parallel()
	reading, read, release := make(chan struct{}), make(chan error, 1), make(chan struct{})
	turn := &adminTurn{bodyTimeout: 100 * time.Millisecond}
	own := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(reading)
			_, err := io.ReadAll(r.Body)
			read <- err
			return
		}
		_, _ = io.ReadAll(r.Body)
		reading <- struct{}{}
		<-release
		read <- r.Context().Err()
	})
	server := httptest.NewServer(turn.wrap(own))
	defer server.Close()
	var ends []chan struct{}
	send := func(path string, body io.Reader) {
		ended := make(chan struct{})
		ends = append(ends, ended)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(ended)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-reading
	}
	whole, part := io.Pipe()
	go func() { _, _ = part.Write([]byte("{")); _ = part.Close() }()
	send("/whole", whole)
	stalled, rest := io.Pipe()
	go func() { _, _ = rest.Write([]byte("{")) }()
	send("/slow", stalled)
	held := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { held <- turn.holdRequests(ctx) }()
	select {
	case err := <-read:
		if err == nil {
			t.Error("a truncated body was accepted")
		}
	case <-ctx.Done():
		t.Error("the handover waited for the slow body")
	}
	close(release)
	if err := <-read; err != nil {
		t.Errorf("the request with a complete body: %v", err)
	}
	if err := <-held; err != nil {
		t.Error(err)
	}
	_ = rest.Close()
	turn.decide(false)
	for _, ended := range ends {
		<-ended
	}
}
