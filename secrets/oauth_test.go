package secrets

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/oauth"
	"boxgate/secrets/remote/remotetest"
)

// clientGrant is a source that gets tokens with the secret "client".
func clientGrant(server *remotetest.Server) *oauth.OAuth2 {
	return &oauth.OAuth2{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: "client", Scopes: []string{"a", "b"}}
}

var clientSecret = map[string]Source{"client": literal("canary-client/secret+1")}

func TestClientCredentials(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		password, _ = url.QueryUnescape(password)
		if r.Method != "POST" || r.URL.Path != "/token" || r.FormValue("grant_type") != "client_credentials" ||
			r.FormValue("scope") != "a b" || user != "me" || password != "canary-client/secret+1" {
			remotetest.Reply(401, map[string]string{"error": "invalid_client"})(w, r)
			return
		}
		remotetest.Reply(200, remotetest.Token("minted", "3600"))(w, r) // some servers send a string
	})
	s, logs := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { wants(t, s, "s", "minted") })
	}
	all.Wait()
	if n := server.Calls.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
	quiet(t, logs)
}

// A server's error may quote its earlier answer.
func TestTokenServersThatQuoteEarlierAnswers(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("canary-of-before", 5)))
	s, logs := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "canary-of-before")
	server.Answers(remotetest.Reply(400, map[string]string{"error": "invalid_request", "error_description": "there is canary-of-before already"}))
	eventually(t, "the log has it", func() bool {
		_, _ = s.Secret(t.Context(), "s") // starts the refresh
		return logs.FilterMessage("a secret could not be refreshed").Len() > 0
	})
	quiet(t, logs)
}

func TestUnreachableTokenServers(t *testing.T) {
	t.Parallel()
	down := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("x", 1)))
	s, logs := asking(t, down, "oauth2", clientGrant(down), clientSecret, nil)
	wants(t, s, "s", "x")
	down.Close()
	eventually(t, "no value", func() bool { _, err := s.Secret(t.Context(), "s"); return err != nil })
	fails(t, s, "s", "cannot be reached")

	untrusted := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("canary", 3600)))
	source := Source{Kind: "oauth2", Remote: clientGrant(untrusted)}
	u, more := opened(t, map[string]Source{"s": source, "client": clientSecret["client"]}) // trusts only the system's roots
	fails(t, u, "s", "certificate is not valid")
	if untrusted.Calls.Load() != 0 {
		t.Error("the client secret was sent to a server that is not trusted")
	}

	stuck := make(chan struct{})
	slow := remotetest.NewServer(t, func(http.ResponseWriter, *http.Request) { <-stuck })
	source = Source{Kind: "oauth2", Remote: clientGrant(slow), Timeout: minTimeout}
	w, last := askingWith(t, slow, source, clientSecret, nil)
	fails(t, w, "s", "did not answer in time")
	close(stuck)
	quiet(t, logs)
	quiet(t, more)
	quiet(t, last)
}

// A server that is broken for a moment is asked again immediately, a few times; one that limits the rate is not.
func TestTokenServersAreAskedAgain(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		if server.Calls.Load() < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		remotetest.Reply(200, remotetest.Token("third", 3600))(w, r)
	})
	s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "third")

	busy := remotetest.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "100000")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	b, _ := asking(t, busy, "oauth2", clientGrant(busy), clientSecret, nil)
	for range 5 {
		fails(t, b, "s", "status 429", "ask again in 15m0s")
	}
	if n := busy.Calls.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	e := b.entries["s"]
	e.mu.Lock()
	defer e.mu.Unlock()
	if left := e.retryAt.elapsed - b.now().elapsed; left < 14*time.Minute || left > 15*time.Minute {
		t.Errorf("asked again in %v", left)
	}
}

// hands is a clock that the test sets.
type hands struct {
	mu sync.Mutex
	at moment
}

func (h *hands) now() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

// pass advances the clocks, the wall clock by a different amount.
func (h *hands) pass(elapsed, wall time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at.elapsed += elapsed
	h.at.wall = h.at.wall.Add(wall)
}

// A token is used no longer than it is valid, by the monotonic or the wall clock, whichever is ahead: the host may have
// been suspended, and the clock may be set.
func TestATokenIsNotUsedBeyondItsTime(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]struct{ elapsed, wall time.Duration }{
		"time passes":                {time.Hour, time.Hour},
		"the host was suspended":     {0, time.Hour},
		"the clock is set forward":   {time.Minute, 24 * time.Hour},
		"the clock is set back":      {time.Hour, -24 * time.Hour},
		"it is about to expire":      {time.Hour - maxMargin, time.Hour - maxMargin},
		"about to, and the clock is": {time.Hour - maxMargin, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("first", 3600)))
			s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
			wants(t, s, "s", "first")
			h := &hands{at: s.now()}
			s.now = h.now
			server.Answers(remotetest.Reply(200, remotetest.Token("second", 3600)))
			h.pass(time.Minute, time.Minute)
			wants(t, s, "s", "first")
			h.pass(jump.elapsed, jump.wall)
			wants(t, s, "s", "second")
			server.Answers(remotetest.Reply(500, nil))
			h.pass(jump.elapsed, jump.wall)
			fails(t, s, "s", "status 500")
		})
	}
}

// From three quarters of its lifetime on, a token is replaced while the old one is still used; a token without a known
// lifetime is used for five minutes.
func TestTokensAreRefreshedAhead(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("first", 3600)))
	s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "first")
	h := &hands{at: s.now()}
	s.now = h.now
	open := make(chan struct{})
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		<-open
		remotetest.Reply(200, map[string]string{"access_token": "second"})(w, r)
	})
	h.pass(50*time.Minute, 50*time.Minute)
	wants(t, s, "s", "first")
	eventually(t, "it is asked", func() bool { return server.Calls.Load() == 2 })
	wants(t, s, "s", "first")
	close(open)
	eventually(t, "the second", func() bool { v, err := s.Secret(t.Context(), "s"); return err == nil && v.Reveal() == "second" })
	server.Answers(remotetest.Reply(200, remotetest.Token("third", 3600)))
	h.pass(commandRefresh-time.Minute, commandRefresh-time.Minute)
	eventually(t, "the third", func() bool { v, err := s.Secret(t.Context(), "s"); return err == nil && v.Reveal() == "third" })
}

// A refused assertion means that the grant is gone only if a new one is refused too, and the clocks agree.
func TestARefusedAssertion(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("first", 3600)))
	from := &oauth.OAuth2{TokenURL: server.URL, Grant: "jwt_bearer", PrivateKey: "key", Issuer: "me"}
	s, logs := asking(t, server, "oauth2", from, map[string]Source{"key": {Value: name.NewSecret(remotetest.Keys().RSA), Document: true}}, nil)
	wants(t, s, "s", "first")
	h := &hands{at: s.now()}
	s.now = h.now

	var mu sync.Mutex
	seen, ahead, once := map[string]bool{}, time.Duration(0), false
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		again := seen[r.PostFormValue("assertion")]
		seen[r.PostFormValue("assertion")] = true
		w.Header().Set("Date", s.now().wall.Add(ahead).UTC().Format(http.TimeFormat))
		if once && len(seen) == 2 && !again {
			remotetest.Reply(200, remotetest.Token("second", 3600))(w, r)
			return
		}
		remotetest.Reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + r.PostFormValue("assertion")})(w, r)
	})
	reset := func(a time.Duration, o bool) {
		mu.Lock()
		defer mu.Unlock()
		seen, ahead, once = map[string]bool{}, a, o
	}
	reset(10*time.Minute, false)
	h.pass(50*time.Minute, 50*time.Minute) // refreshed ahead
	wants(t, s, "s", "first")
	eventually(t, "the source is asked", func() bool { return s.Status()[1].Err != nil })
	if err := s.Status()[1].Err.Error(); !strings.Contains(err, "invalid_grant") || !strings.Contains(err, "; the gateway's clock is ") {
		t.Error(err)
	}
	wants(t, s, "s", "first")

	reset(0, true)
	h.pass(time.Minute, time.Minute)
	eventually(t, "a new assertion is accepted", func() bool { v, err := s.Secret(t.Context(), "s"); return err == nil && v.Reveal() == "second" })

	reset(0, false)
	h.pass(50*time.Minute, 50*time.Minute)
	eventually(t, "the value of a revoked grant is not used", func() bool { _, err := s.Secret(t.Context(), "s"); return err != nil })
	s.Close()
	quiet(t, logs)
}

// An error contains the source that failed, and the secret that it needed.
func TestErrorsNameTheSource(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(404, nil))
	host := strings.TrimPrefix(server.URL, "https://")
	s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	fails(t, s, "s", "oauth2 "+host, "status 404")
	keyless, _ := asking(t, server, "oauth2", clientGrant(server), map[string]Source{"client": {File: "/nonexistent/key"}}, nil)
	v, err := keyless.Secret(t.Context(), "s")
	if err == nil || v.Reveal() != "" || !strings.Contains(err.Error(), `it needs secret "client"`) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%q, %v", v.Reveal(), err)
	}
}
