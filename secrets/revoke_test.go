package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/oauth"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

// holders records revocations.
type holders struct {
	mu      sync.Mutex
	held    bool
	revoked []string
}

func (h *holders) UsesSecret(string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

func (h *holders) Revoke(secret string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revoked = append(h.revoked, secret)
	slices.Sort(h.revoked)
}

func (h *holders) seen() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.revoked, " ")
}

// derived is a source derived from the secret "s".
type derived struct{}

func (derived) Validate(remote.Fail) {}
func (derived) Needs() []string      { return []string{"s"} }
func (derived) Place() string        { return "test" }
func (derived) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	v, err := d.Secret(ctx, "s")
	return remote.Value{Secret: name.NewSecret("of-" + v.Reveal())}, err
}

// withDerived adds a secret "d" derived from "s".
func withDerived(s *Secrets, h *holders) {
	source := Source{Kind: "derived", Remote: derived{}}
	s.entries["d"] = &entry{name: "d", source: source, load: s.remoteLoader("d", source), owner: s}
	s.counts = newCounts([]string{"s", "d"})
	s.SetHolders(h)
}

// A manually refreshed secret is no longer used after the call, nor are values derived from it, even if it was being
// read at that time.
func TestRefreshByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		gate := make(chan struct{}, 10)
		s, _ := scriptedSecrets(t, func(context.Context) (string, error) {
			v := fmt.Sprintf("v%d", n.Add(1))
			<-gate
			return v, nil
		})
		h := &holders{}
		withDerived(s, h)
		gate <- struct{}{}
		wants(t, s, "d", "of-v1")
		done := make(chan error)
		go func() { done <- s.Refresh(t.Context(), "s") }()
		synctest.Wait() // v2 is being read
		if got := h.seen(); got != "d s" {
			t.Errorf("revoked: %q", got)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if v, err := s.Secret(impatient, "d"); err == nil {
			t.Errorf("the old value is given out: %q", v.Reveal())
		}
		cancel()
		go func() { done <- s.Refresh(t.Context(), "s") }() // while v2 is being read: it may be the revoked value
		synctest.Wait()
		gate <- struct{}{}
		gate <- struct{}{}
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
		wants(t, s, "s", "v3")
		wants(t, s, "d", "of-v3")
		if err := s.Refresh(t.Context(), "other"); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	})
}

// When a source reports that it no longer has the secret, the secret is dropped immediately, even if its refresh time
// has not passed; a mere failure has no such effect. While connections carry the secret, the source is read even
// without requests.
func TestASecretThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failure := atomic.Pointer[error]{}
		s, src := scriptedSecrets(t, func(context.Context) (string, error) {
			if err := failure.Load(); err != nil {
				return "", *err
			}
			return "v", nil
		})
		h := &holders{held: true}
		withDerived(s, h)
		wants(t, s, "d", "of-v")
		busy := error(&remote.Error{Status: 503})
		failure.Store(&busy)
		time.Sleep(6500 * time.Millisecond)
		synctest.Wait()
		if len(src.calls) < 2 || h.seen() != "" {
			t.Errorf("asked %d times, revoked %q", len(src.calls), h.seen())
		}
		wants(t, s, "s", "v")
		gone := error(goneError{errors.New("no such file")})
		failure.Store(&gone)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := h.seen(); got != "d s" {
			t.Errorf("revoked: %q", got)
		}
		fails(t, s, "s", "no such file")
		fails(t, s, "d", "it needs secret")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := h.seen(); got != "d d s" { // d again, when it was found to be gone itself
			t.Errorf("revoked again: %q", got)
		}
		failure.Store(nil)
		time.Sleep(2 * time.Second)
		wants(t, s, "s", "v")
		h.mu.Lock()
		h.held = false
		h.mu.Unlock()
	})
}

// Connections set later learn which secrets were found to be gone before, and the secrets that they carry are refreshed
// from then on.
func TestHoldersThatComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failure := atomic.Pointer[error]{}
		s, src := scriptedSecrets(t, func(context.Context) (string, error) {
			if err := failure.Load(); err != nil {
				return "", *err
			}
			return "v", nil
		})
		wants(t, s, "s", "v")
		time.Sleep(time.Hour) // no connection carries it
		read := len(src.calls)
		h := &holders{held: true}
		s.SetHolders(h)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(src.calls) == read || h.seen() != "" {
			t.Errorf("read %d times since, revoked %q", len(src.calls)-read, h.seen())
		}
		gone := error(goneError{errors.New("no such file")})
		failure.Store(&gone)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		later := &holders{}
		s.SetHolders(later)
		if got := later.seen(); got != "s" {
			t.Errorf("revoked: %q", got)
		}
		h.mu.Lock()
		h.held = false
		h.mu.Unlock()
	})
}

func TestStaticSecretsAreNotRefreshed(t *testing.T) {
	t.Parallel()
	s, _ := single(t, literal(canary))
	wants(t, s, "s", canary)
	if err := s.Refresh(t.Context(), "s"); !errors.Is(err, ErrStatic) {
		t.Error(err)
	}
	wants(t, s, "s", canary)
}

// A secret that is revoked repeatedly while it is read still becomes available.
func TestRefreshByHandDoesNotStarve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var n atomic.Int64
		s, _ := scriptedSecrets(t, func(context.Context) (string, error) {
			v := fmt.Sprintf("v%d", n.Add(1))
			<-gate
			return v, nil
		})
		withDerived(s, &holders{})
		refused := make(chan error, 10)
		for i := range maxRereads + 1 {
			go func() { refused <- s.Refresh(t.Context(), "s") }()
			synctest.Wait()
			if i > 0 { // the running read is discarded
				gate <- struct{}{}
				synctest.Wait()
			}
		}
		if err := s.Refresh(t.Context(), "s"); !errors.Is(err, ErrBusy) {
			t.Errorf("revoked while it is read once more: %v", err)
		}
		gate <- struct{}{}
		for range maxRereads + 1 {
			if err := <-refused; err != nil {
				t.Error(err)
			}
		}
		close(gate)
		if err := s.Refresh(t.Context(), "s"); err != nil {
			t.Error(err)
		}
	})
}

// A server that requested a pause is not asked when the secret is revoked, and the value is not used.
func TestRefreshByHandHeedsRetryAfter(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("first", 3600)))
	from := &oauth.OAuth2{TokenURL: server.URL, ClientID: "me", ClientSecret: "key"}
	s, _ := asking(t, server, "oauth2", from, map[string]Source{"key": literal("canary-key")}, nil)
	wants(t, s, "s", "first")
	h := &hands{at: s.now()}
	s.now = h.now
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "600")
		remotetest.Reply(429, map[string]string{"error": "slow_down"})(w, r)
	})
	if err := s.Refresh(t.Context(), "s"); err == nil || !strings.Contains(err.Error(), "ask again in 10m0s") {
		t.Error(err)
	}
	calls := server.Calls.Load()
	for range 3 {
		if err := s.Refresh(t.Context(), "s"); err == nil || !strings.Contains(err.Error(), "ask again in 10m0s") {
			t.Error(err)
		}
	}
	fails(t, s, "s", "status 429")
	if got := server.Calls.Load(); got != calls {
		t.Errorf("the server was asked %d times more", got-calls)
	}
	server.Answers(remotetest.Reply(200, remotetest.Token("second", 3600)))
	h.pass(10*time.Minute, 10*time.Minute)
	wants(t, s, "s", "second")
}

// The memory of a source outlives the secrets that it was opened with; once the server reports that the grant is
// revoked, a value derived from it is not used, even if it would be valid for longer.
func TestARevokedGrant(t *testing.T) {
	t.Parallel()
	var revoked atomic.Bool
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		presented := r.FormValue("refresh_token")
		if revoked.Load() || presented != "canary-first" && presented != "canary-next" {
			remotetest.Reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + presented})(w, r)
			return
		}
		given := remotetest.Token("with-"+strings.TrimPrefix(presented, "canary-"), 3600)
		given["refresh_token"] = "canary-next"
		remotetest.Reply(200, given)(w, r)
	})
	from := &oauth.OAuth2{TokenURL: server.URL, Grant: "refresh_token", ClientID: "me", RefreshToken: "first"}
	kept := &remotetest.Memory{}
	first := map[string]Source{"first": literal("canary-first")}
	s, logs := asking(t, server, "oauth2", from, first, kept)
	wants(t, s, "s", "with-first")
	s.Close()
	again, more := asking(t, server, "oauth2", from, first, kept)
	wants(t, again, "s", "with-next")

	h := &hands{at: again.now()}
	again.now = h.now
	revoked.Store(true)
	h.pass(50*time.Minute, 50*time.Minute) // refreshed ahead
	wants(t, again, "s", "with-next")
	eventually(t, "the valid token is given up", func() bool { _, err := again.Secret(t.Context(), "s"); return err != nil })
	fails(t, again, "s", "invalid_grant")
	again.Close()
	quiet(t, logs)
	quiet(t, more)
}
