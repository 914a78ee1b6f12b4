package oauth_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy/name"
	"boxgate/secrets/oauth"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

// rotating is a token server that replaces each presented refresh token. Like many servers, it accepts the previous one
// until the new one has been presented, so that a lost answer does no harm.
type rotating struct {
	mu        sync.Mutex
	accepted  []string // newest first
	presented []string
	n         int
}

func (r *rotating) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	presented := req.FormValue("refresh_token")
	r.presented = append(r.presented, presented)
	if !slices.Contains(r.accepted, presented) {
		remotetest.Reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + presented})(w, req)
		return
	}
	r.n++
	next := fmt.Sprintf("canary-refresh-%d", r.n)
	r.accepted = []string{next, presented}
	answer := remotetest.Token(fmt.Sprintf("access-%d", r.n), 3600)
	answer["refresh_token"] = next
	remotetest.Reply(200, answer)(w, req)
}

// accept replaces the tokens that the server accepts.
func (r *rotating) accept(tokens ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted = tokens
}

func newRotating(t *testing.T) (*rotating, *remotetest.Server, *oauth.OAuth2) {
	t.Helper()
	r := &rotating{accepted: []string{"canary-first"}}
	server := remotetest.NewServer(t, r.ServeHTTP)
	return r, server, &oauth.OAuth2{TokenURL: server.URL, Grant: "refresh_token", ClientID: "me", RefreshToken: "first"}
}

var firstRefresh = map[string]string{"first": "canary-first"}

func TestRefreshTokensRotate(t *testing.T) {
	t.Parallel()
	_, server, from := newRotating(t)
	kept := &remotetest.Memory{}
	for i := range 5 {
		remotetest.Wants(t, from, server.Env(firstRefresh, kept), fmt.Sprintf("access-%d", i+1))
	}
	restarted := *from // the configured token was used up long ago
	remotetest.Wants(t, &restarted, server.Env(firstRefresh, kept), "access-6")

	// The operator signs in again: the new token is used, not the stored successor of the old one.
	r2, server2, _ := newRotating(t)
	r2.accept("canary-second")
	anew := *from
	anew.TokenURL = server2.URL
	remotetest.Wants(t, &anew, server2.Env(map[string]string{"first": "canary-second"}, kept), "access-1")
}

// No access token is used before the refresh token that came with it is on disk.
func TestARefreshTokenIsKeptFirst(t *testing.T) {
	t.Parallel()
	r, server, from := newRotating(t)
	kept := &remotetest.Memory{}
	kept.Fail(errors.New("no space left"))
	env := server.Env(firstRefresh, kept)
	remotetest.Fails(t, from, env, "cannot be kept", "no space left")
	remotetest.Fails(t, from, env, "cannot be kept", "no space left") // it is not even presented
	if len(r.presented) != 1 {
		t.Errorf("%q were presented", r.presented)
	}
	kept.Fail(nil)
	r.accept("canary-refresh-1") // the server gave up the first: only the gateway's memory has the new one
	remotetest.Wants(t, from, env, "access-2")
}

// If the newest token is refused, the previous one is tried, once; a revoked grant is dropped immediately.
func TestARefreshTokenIsRevoked(t *testing.T) {
	t.Parallel()
	r, server, from := newRotating(t)
	env := server.Env(firstRefresh, nil)
	remotetest.Wants(t, from, env, "access-1")
	r.accept("canary-first") // the server forgot its answer
	remotetest.Wants(t, from, env, "access-2")
	r.accept()
	r.presented = nil
	if err := remotetest.Fails(t, from, env, "invalid_grant"); !remote.IsGone(err) {
		t.Errorf("a revoked grant is not gone: %v", err)
	}
	if want := []string{"canary-refresh-2", "canary-first"}; !slices.Equal(r.presented, want) {
		t.Errorf("%q were presented, want %q", r.presented, want)
	}
	server.Answers(remotetest.Reply(503, nil))
	before := server.Calls.Load()
	remotetest.Fails(t, from, env, "status 503")
	if n := server.Calls.Load() - before; n != 1 {
		t.Errorf("a token was presented %d times to a server that may have used it", n)
	}
}

// TestServersThatKeepTheirToken checks that a server that returns no refresh token, or the same one, receives the same
// one again, and that the previous one is dropped once a newer one was used.
func TestServersThatKeepTheirToken(t *testing.T) {
	t.Parallel()
	next := ""
	var presented []string
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		presented = append(presented, r.FormValue("refresh_token"))
		answer := remotetest.Token("access", 60)
		if next != "" {
			answer["refresh_token"] = next
		}
		remotetest.Reply(200, answer)(w, r)
	})
	from := &oauth.OAuth2{TokenURL: server.URL, Grant: "refresh_token", ClientID: "me", RefreshToken: "first"}
	kept := &remotetest.Memory{}
	for _, next = range []string{"", "canary-first", "canary-next", "", ""} {
		remotetest.Wants(t, from, server.Env(firstRefresh, kept), "access")
	}
	if want := []string{"canary-first", "canary-first", "canary-first", "canary-next", "canary-next"}; !slices.Equal(presented, want) {
		t.Errorf("%q were presented, want %q", presented, want)
	}
	if text, err := kept.Remembered("s"); err != nil || strings.Contains(text.Reveal(), "canary-first") || !strings.Contains(text.Reveal(), "canary-next") {
		t.Errorf("%q is kept, %v", text.Reveal(), err)
	}
}

// A token server quotes refresh tokens that were not in the request: the previous one, the configured one, and, once
// another is configured, those of the old grant. None of them appears in an error or the log.
func TestTokenServersThatQuoteOtherRefreshTokens(t *testing.T) {
	t.Parallel()
	_, server, from := newRotating(t)
	kept := &remotetest.Memory{}
	for i := range 5 {
		remotetest.Wants(t, from, server.Env(firstRefresh, kept), fmt.Sprintf("access-%d", i+1))
	} // canary-refresh-5 and its predecessor are stored
	for _, configured := range []string{"canary-first", "canary-second"} {
		server.Answers(remotetest.Reply(400, map[string]string{
			"error": "invalid_request", "error_description": "reuse: canary-refresh-5 after canary-refresh-4, of " + configured,
		}))
		err := remotetest.Fails(t, from, server.Env(map[string]string{"first": configured}, kept), "status 400")
		if refused, ok := errors.AsType[*remote.Error](err); !ok || !strings.Contains(refused.ServerText, "reuse: [redacted] after [redacted]") {
			t.Errorf("the log would not have the cause: %v", err)
		}
	}
}

// odd is a memory that returns a fixed text or an error.
type odd struct {
	text string
	err  error
}

func (o odd) Remembered(string) (name.Secret, error) { return name.NewSecret(o.text), o.err }
func (o odd) Remember(string, name.Secret) error     { return nil }

// TestMemoriesThatAreDamaged checks that an unreadable stored token is not replaced by the configured one, which was
// used up long ago.
func TestMemoriesThatAreDamaged(t *testing.T) {
	t.Parallel()
	_, server, from := newRotating(t)
	env := server.Env(firstRefresh, nil)
	for words, memory := range map[string]odd{
		"cannot be read from the store": {err: errors.New("canary")},
		"in the store is damaged":       {text: `canary`},
	} {
		env.Memory = memory
		remotetest.Fails(t, from, env, words)
	}
	if n := server.Calls.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	env.Memory = odd{text: `{}`}
	remotetest.Wants(t, from, env, "access-1")
}

// TestAStopDoesNotLoseARefreshToken checks that a request that was sent is finished, because its answer may contain the
// only valid token, that none is started after the stop, and that none exceeds its deadline.
func TestAStopDoesNotLoseARefreshToken(t *testing.T) {
	t.Parallel()
	r, server, from := newRotating(t)
	kept := &remotetest.Memory{}
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	server.Answers(func(w http.ResponseWriter, req *http.Request) {
		stop() // while the server answers
		r.ServeHTTP(w, req)
	})
	if _, err := from.Fetch(ctx, server.Env(firstRefresh, kept)); err != nil {
		t.Error(err)
	}
	if text, _ := kept.Remembered("s"); !strings.Contains(text.Reveal(), "canary-refresh-1") {
		t.Errorf("the new token is lost: %q", text.Reveal())
	}
	if _, err := from.Fetch(ctx, server.Env(firstRefresh, kept)); !errors.Is(err, context.Canceled) || len(r.presented) != 1 {
		t.Errorf("%v, and %q were presented", err, r.presented)
	}
	release := make(chan struct{})
	defer close(release)
	server.Answers(func(http.ResponseWriter, *http.Request) { <-release })
	short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	if _, err := from.Fetch(short, server.Env(firstRefresh, kept)); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("beyond its deadline: %v", err)
	}
}

// failAt is the context key of the failing step.
type failAt struct{}

func TestMain(m *testing.M) {
	fault.Inject(func(ctx context.Context, step string) error {
		if ctx.Value(failAt{}) == step {
			return errors.New("injected")
		}
		return nil
	}, nil)
	m.Run()
}

// TestFaultsWhileATokenRotates checks that after a failure at any step, the token that the server accepts next is
// presented next.
func TestFaultsWhileATokenRotates(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"secrets: refresh token presented", "secrets: refresh tokens kept"} {
		_, server, from := newRotating(t)
		kept := &remotetest.Memory{}
		broken := context.WithValue(t.Context(), failAt{}, at)
		if _, err := from.Fetch(broken, server.Env(firstRefresh, kept)); err == nil {
			t.Errorf("%s: no error", at)
		}
		restarted := *from
		remotetest.Wants(t, &restarted, server.Env(firstRefresh, kept), "access-2")
	}
}
