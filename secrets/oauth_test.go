package secrets

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/secrets/oauth"
)

// clientGrant is a source that gets tokens with the secret "client".
func clientGrant(server *tokenServer) *oauth.OAuth2 {
	return &oauth.OAuth2{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: "client", Scopes: []string{"a", "b"}}
}

var clientSecret = map[string]Source{"client": literal("canary-client/secret+1")}

func TestClientCredentials(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		password, _ = url.QueryUnescape(password)
		if r.Method != "POST" || r.URL.Path != "/token" || r.FormValue("grant_type") != "client_credentials" ||
			r.FormValue("scope") != "a b" || user != "me" || password != "canary-client/secret+1" {
			reply(401, map[string]string{"error": "invalid_client"})(w, r)
			return
		}
		reply(200, token("minted", "3600"))(w, r) // some servers send a text
	})
	s, logs := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { wants(t, s, "s", "minted") })
	}
	all.Wait()
	if n := server.calls.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
	quiet(t, logs)
}

// Whatever a token server does wrong, there is no value, the error has the cause, and nothing shows a secret.
func TestBadTokenServers(t *testing.T) {
	t.Parallel()
	reflecting := func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		plain, _ := url.QueryUnescape(password)
		basic := strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")
		reply(400, map[string]string{
			"error": plain, "error_description": "no client has " + plain + " or " + password + " or " + basic + " or " +
				base64.StdEncoding.EncodeToString([]byte(plain)),
			"message": plain, "canary-key": plain,
		})(w, r)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		words  []string
	}{
		"refusing":        {reply(401, map[string]string{"error": "invalid_client", "error_description": "who?"}), []string{"status 401", "invalid_client"}},
		"reflecting":      {reflecting, []string{"status 400"}},
		"not JSON":        {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>canary") }, []string{"not the JSON"}},
		"without a token": {reply(200, map[string]any{"expires_in": 3600}), []string{"no bearer token"}},
		"another type":    {reply(200, map[string]any{"access_token": "canary", "token_type": "mac", "expires_in": 3600}), []string{"no bearer token"}},
		"expired":         {reply(200, token("canary", -1)), []string{"already expired"}},
		"expired now":     {reply(200, token("canary", 0)), []string{"already expired"}},
		"odd expiry":      {reply(200, token("canary", "soon")), []string{"not the JSON"}},
		"line break":      {reply(200, token("canary\r\nX-Other: 1", 3600)), []string{"visible ASCII"}},
		"endless":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }, []string{"longer than 256 KiB"}},
		"a redirect":      {http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect).ServeHTTP, []string{"status 307", "not followed"}},
		"gone":            {reply(404, nil), []string{"status 404"}},
		"another field":   {reply(200, []string{"canary"}), []string{"not the JSON"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newTokenServer(t, c.answer)
			s, logs := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
			fails(t, s, "s", c.words...)
			if n := server.calls.Load(); n != 1 {
				t.Errorf("asked %d times", n)
			}
			eventually(t, "the log has it", func() bool { return logs.FilterMessage("a secret could not be refreshed").Len() == 1 })
			quiet(t, logs)
		})
	}
}

// A server may say in an error what it answered before.
func TestTokenServersThatQuoteEarlierAnswers(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, reply(200, token("canary-of-before", 5)))
	s, logs := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "canary-of-before")
	server.answers(reply(400, map[string]string{"error": "invalid_request", "error_description": "there is canary-of-before already"}))
	eventually(t, "the log has it", func() bool {
		_, _ = s.Secret(t.Context(), "s") // a request begins the refresh
		return logs.FilterMessage("a secret could not be refreshed").Len() > 0
	})
	quiet(t, logs)
}

func TestUnreachableTokenServers(t *testing.T) {
	t.Parallel()
	down := newTokenServer(t, reply(200, token("x", 1)))
	s, logs := asking(t, down, "oauth2", clientGrant(down), clientSecret, nil)
	wants(t, s, "s", "x")
	down.Close()
	eventually(t, "no value", func() bool { _, err := s.Secret(t.Context(), "s"); return err != nil })
	fails(t, s, "s", "cannot be reached")

	untrusted := newTokenServer(t, reply(200, token("canary", 3600)))
	source := Source{Kind: "oauth2", Remote: clientGrant(untrusted)}
	u, more := opened(t, map[string]Source{"s": source, "client": clientSecret["client"]}) // which trusts the system's roots
	fails(t, u, "s", "certificate is not valid")
	if untrusted.calls.Load() != 0 {
		t.Error("the client secret was sent to a server that is not trusted")
	}

	stuck := make(chan struct{})
	slow := newTokenServer(t, func(http.ResponseWriter, *http.Request) { <-stuck })
	source = Source{Kind: "oauth2", Remote: clientGrant(slow), Timeout: minTimeout}
	w, last := askingWith(t, slow, source, clientSecret, nil)
	fails(t, w, "s", "did not answer in time")
	close(stuck)
	quiet(t, logs)
	quiet(t, more)
	quiet(t, last)
}

// A server that is broken for a moment is asked again at once, a few times; one that limits the rate is left alone.
func TestTokenServersAreAskedAgain(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, nil)
	server.answers(func(w http.ResponseWriter, r *http.Request) {
		if server.calls.Load() < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		reply(200, token("third", 3600))(w, r)
	})
	s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "third")

	busy := newTokenServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "100000")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	b, _ := asking(t, busy, "oauth2", clientGrant(busy), clientSecret, nil)
	for range 5 {
		fails(t, b, "s", "status 429", "ask again in 15m0s")
	}
	if n := busy.calls.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	e := b.entries["s"]
	e.mu.Lock()
	defer e.mu.Unlock()
	if left := e.retry.elapsed - b.now().elapsed; left < 14*time.Minute || left > 15*time.Minute {
		t.Errorf("asked again in %v", left)
	}
}

// hands is a clock that a test sets.
type hands struct {
	mu sync.Mutex
	at moment
}

func (h *hands) now() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

// pass lets time pass, more or less of it on the wall clock.
func (h *hands) pass(elapsed, wall time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at.elapsed += elapsed
	h.at.wall = h.at.wall.Add(wall)
}

// A token is used no longer than it is valid, by the clock of the host's operation and by the wall clock, whichever is
// ahead: the host may have been suspended, and the clock may be set.
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
			server := newTokenServer(t, reply(200, token("first", 3600)))
			s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
			wants(t, s, "s", "first")
			h := &hands{at: s.now()}
			s.now = h.now
			server.answers(reply(200, token("second", 3600)))
			h.pass(time.Minute, time.Minute)
			wants(t, s, "s", "first")
			h.pass(jump.elapsed, jump.wall)
			wants(t, s, "s", "second")
			server.answers(reply(500, nil))
			h.pass(jump.elapsed, jump.wall)
			fails(t, s, "s", "status 500")
		})
	}
}

// From three quarters of its time on, a token is replaced while the old one is still used; a token of which the server
// does not say when it expires is used for five minutes.
func TestTokensAreRefreshedAhead(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, reply(200, token("first", 3600)))
	s, _ := asking(t, server, "oauth2", clientGrant(server), clientSecret, nil)
	wants(t, s, "s", "first")
	h := &hands{at: s.now()}
	s.now = h.now
	open := make(chan struct{})
	server.answers(func(w http.ResponseWriter, r *http.Request) {
		<-open
		reply(200, map[string]string{"access_token": "second"})(w, r)
	})
	h.pass(50*time.Minute, 50*time.Minute)
	wants(t, s, "s", "first")
	eventually(t, "it is asked", func() bool { return server.calls.Load() == 2 })
	wants(t, s, "s", "first")
	close(open)
	eventually(t, "the second", func() bool { v, err := s.Secret(t.Context(), "s"); return err == nil && v.Reveal() == "second" })
	server.answers(reply(200, token("third", 3600)))
	h.pass(commandRefresh-time.Minute, commandRefresh-time.Minute)
	eventually(t, "the third", func() bool { v, err := s.Secret(t.Context(), "s"); return err == nil && v.Reveal() == "third" })
}

// An assertion that is refused says that the grant is gone only if a new one is refused too, and the clocks agree.
func TestARefusedAssertion(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, reply(200, token("first", 3600)))
	from := &oauth.OAuth2{TokenURL: server.URL, Grant: "jwt_bearer", PrivateKey: "key", Issuer: "me"}
	s, logs := asking(t, server, "oauth2", from, map[string]Source{"key": {Value: policy.NewSecret(keys().rsa), Document: true}}, nil)
	wants(t, s, "s", "first")
	h := &hands{at: s.now()}
	s.now = h.now

	var mu sync.Mutex
	seen, ahead, once := map[string]bool{}, time.Duration(0), false
	server.answers(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		again := seen[r.PostFormValue("assertion")]
		seen[r.PostFormValue("assertion")] = true
		w.Header().Set("Date", s.now().wall.Add(ahead).UTC().Format(http.TimeFormat))
		if once && len(seen) == 2 && !again {
			reply(200, token("second", 3600))(w, r)
			return
		}
		reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + r.PostFormValue("assertion")})(w, r)
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
