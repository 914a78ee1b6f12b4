package secrets

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/secrets/oauth"
)

// rotating is a token server that replaces each refresh token that is presented. As many do, it accepts the one before
// until the new one has been presented, so that an answer that was lost does no harm.
type rotating struct {
	mu       sync.Mutex
	accepted []string // newest first
	n        int
}

func (r *rotating) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	presented := req.FormValue("refresh_token")
	if !slices.Contains(r.accepted, presented) {
		reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + presented})(w, req)
		return
	}
	r.n++
	next := fmt.Sprintf("canary-refresh-%d", r.n)
	r.accepted = []string{next, presented}
	answer := token(fmt.Sprintf("access-%d", r.n), 3600)
	answer["refresh_token"] = next
	reply(200, answer)(w, req)
}

func newRotating(t *testing.T) (*rotating, *tokenServer, *oauth.OAuth2) {
	t.Helper()
	r := &rotating{accepted: []string{"canary-first"}}
	server := newTokenServer(t, r.ServeHTTP)
	return r, server, &oauth.OAuth2{TokenURL: server.URL, Grant: "refresh_token", ClientID: "me", RefreshToken: "first"}
}

var firstRefresh = map[string]Source{"first": literal("canary-first")}

func TestRefreshTokensRotate(t *testing.T) {
	t.Parallel()
	_, server, from := newRotating(t)
	kept := &memory{}
	s, logs := asking(t, server, "oauth2", from, firstRefresh, kept)
	for i := range 5 {
		wants(t, s, "s", fmt.Sprintf("access-%d", i+1))
		if err := s.Refresh(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	again, more := asking(t, server, "oauth2", from, firstRefresh, kept) // a restart: the configured token is long gone
	wants(t, again, "s", "access-7")
	again.Close()
	quiet(t, logs)
	quiet(t, more)

	// The operator signs in anew: the new token counts, not what was kept of the old one.
	r2, server2, _ := newRotating(t)
	r2.accepted = []string{"canary-second"}
	anew := *from
	anew.TokenURL = server2.URL
	n, _ := asking(t, server2, "oauth2", &anew, map[string]Source{"first": literal("canary-second")}, kept)
	wants(t, n, "s", "access-1")
}

// No access token is used before the refresh token that came with it is on disk.
func TestARefreshTokenIsKeptFirst(t *testing.T) {
	t.Parallel()
	r, server, from := newRotating(t)
	kept := &memory{err: errors.New("no space left")}
	s, logs := asking(t, server, "oauth2", from, firstRefresh, kept)
	fails(t, s, "s", "cannot be kept", "no space left")
	kept.fail(nil)
	r.mu.Lock()
	r.accepted = r.accepted[:1] // the server gave up the first: only the gateway's memory has the new one
	r.mu.Unlock()
	eventually(t, "the token that could not be kept is used", func() bool {
		v, err := s.Secret(t.Context(), "s")
		return err == nil && v.Reveal() == "access-2"
	})
	quiet(t, logs)
}

// If the newest token is not accepted, the one before is tried, once; a revoked grant is given up at once.
func TestARefreshTokenIsRevoked(t *testing.T) {
	t.Parallel()
	r, server, from := newRotating(t)
	kept := &memory{}
	s, _ := asking(t, server, "oauth2", from, firstRefresh, kept)
	wants(t, s, "s", "access-1")
	r.mu.Lock()
	r.accepted = []string{"canary-first"} // the server forgot its answer
	r.mu.Unlock()
	if err := s.Refresh(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	wants(t, s, "s", "access-2")

	h := &hands{at: s.now()}
	s.now = h.now
	r.mu.Lock()
	r.accepted = nil
	r.mu.Unlock()
	h.pass(50*time.Minute, 50*time.Minute) // refreshed ahead
	wants(t, s, "s", "access-2")
	eventually(t, "the valid token is given up", func() bool { _, err := s.Secret(t.Context(), "s"); return err != nil })
	fails(t, s, "s", "invalid_grant")
}

// A token server quotes refresh tokens that were not in the request: the one before, the one that the operator configured, and, once
// another is configured, those of the grant before. None of them gets into an error or the log.
func TestTokenServersThatQuoteOtherRefreshTokens(t *testing.T) {
	t.Parallel()
	_, server, from := newRotating(t)
	kept := &memory{}
	s, logs := asking(t, server, "oauth2", from, firstRefresh, kept)
	for i := range 4 {
		wants(t, s, "s", fmt.Sprintf("access-%d", i+1))
		if err := s.Refresh(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, s, "s", "access-5")
	s.Close() // canary-refresh-5 and the one before it are kept
	quiet(t, logs)
	for _, configured := range []string{"canary-first", "canary-second"} {
		server.answers(reply(400, map[string]string{
			"error": "invalid_request", "error_description": "reuse: canary-refresh-5 after canary-refresh-4, of " + configured,
		}))
		again, logs := asking(t, server, "oauth2", from, map[string]Source{"first": literal(configured)}, kept)
		fails(t, again, "s", "status 400")
		eventually(t, "the log has it", func() bool { return logs.FilterMessage("a secret could not be refreshed").Len() > 0 })
		quiet(t, logs)
		if said := fmt.Sprint(logs.FilterMessage("a secret could not be refreshed").All()[0].ContextMap()); !strings.Contains(said, "reuse: [redacted] after [redacted]") {
			t.Errorf("the log does not say what was wrong: %s", said)
		}
		again.Close()
	}
}
