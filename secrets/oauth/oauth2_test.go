package oauth_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/secrets/oauth"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

// clientGrant is a source that gets tokens with the secret "client".
func clientGrant(server *remotetest.Server) *oauth.OAuth2 {
	return &oauth.OAuth2{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: "client", Scopes: []string{"a", "b"}}
}

var clientSecret = map[string]string{"client": "canary-client/secret+1"}

// TestClientCredentialsOnTheWire checks that the secret of a client is sent as basic authentication (RFC 6749, section
// 2.3.1) or in the body, and that the configured parameters are in the form.
func TestClientCredentialsOnTheWire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*oauth.OAuth2)
		form   url.Values
		basic  bool
	}{
		"basic":       {func(o *oauth.OAuth2) {}, url.Values{"scope": {"a b"}}, true},
		"named basic": {func(o *oauth.OAuth2) { o.Auth, o.Scopes = "basic", nil }, url.Values{}, true},
		"body": {func(o *oauth.OAuth2) { o.Auth, o.Resource, o.APIAudience = "body", "https://api", "api" },
			url.Values{"scope": {"a b"}, "client_id": {"me"}, "client_secret": {"canary-client/secret+1"}, "resource": {"https://api"}, "audience": {"api"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
				user, password, basic := r.BasicAuth()
				password, _ = url.QueryUnescape(password)
				c.form.Set("grant_type", "client_credentials")
				if err := r.ParseForm(); err != nil || r.Method != "POST" || r.URL.Path != "/token" || r.PostForm.Encode() != c.form.Encode() ||
					basic != c.basic || basic && (user != "me" || password != "canary-client/secret+1") {
					t.Errorf("%v: %s %s %v, basic %v", err, r.Method, r.URL, r.PostForm, basic)
				}
				remotetest.Reply(200, remotetest.Token("minted", "3600"))(w, r) // some servers send a string
			})
			from := clientGrant(server)
			c.change(from)
			if left := remotetest.Wants(t, from, server.Env(clientSecret, nil), "minted"); left != time.Hour {
				t.Errorf("it is used for %v", left)
			}
			if needs := from.Needs(); !slices.Equal(needs, []string{"client"}) || from.Place() != strings.TrimPrefix(server.URL, "https://") {
				t.Errorf("needs %q, at %s", needs, from.Place())
			}
		})
	}
}

// TestLifetimes checks that a token is used no longer than its lifetime, and for at most a day.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	env := server.Env(clientSecret, nil)
	for given, want := range map[any]time.Duration{
		"3600": time.Hour, 60: time.Minute, 0.5: time.Second / 2, 1e9: 24 * time.Hour, "1e300": 24 * time.Hour, nil: 0,
	} {
		server.Answers(remotetest.Reply(200, remotetest.Token("x", given)))
		if left := remotetest.Wants(t, clientGrant(server), env, "x"); left != want {
			t.Errorf("expires_in %v: it is used for %v, want %v", given, left, want)
		}
	}
	server.Answers(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"access_token":"canary","expires_in":1e999}`)
	})
	remotetest.Fails(t, clientGrant(server), env, "valid expires_in")
}

// With a misbehaving token server there is no value, the error contains the cause, and no text shows a secret.
func TestBadTokenServers(t *testing.T) {
	t.Parallel()
	reflecting := func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		plain, _ := url.QueryUnescape(password)
		basic := strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")
		remotetest.Reply(400, map[string]string{
			"error": plain, "error_description": "no client has " + plain + " or " + password + " or " + basic + " or " +
				base64.StdEncoding.EncodeToString([]byte(plain)),
			"message": plain, "canary-key": plain,
		})(w, r)
	}
	reply, token := remotetest.Reply, remotetest.Token
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
		"endless":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }, []string{"longer than 256 KiB"}},
		"a redirect":      {http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect).ServeHTTP, []string{"status 307", "not followed"}},
		"gone":            {reply(404, nil), []string{"status 404"}},
		"another field":   {reply(200, []string{"canary"}), []string{"not the JSON"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := remotetest.NewServer(t, c.answer)
			remotetest.Fails(t, clientGrant(server), server.Env(clientSecret, nil), c.words...)
			if n := server.Calls.Load(); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// TestSecretsThatAreMissing checks that no server is contacted without the secret that a grant needs.
func TestSecretsThatAreMissing(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("canary", 60)))
	at := server.URL + "/token"
	none := server.Env(map[string]string{"odd": "canary"}, nil)
	for _, c := range []struct {
		from  remote.Source
		words string
	}{
		{clientGrant(server), `no secret "client"`},
		{&oauth.OAuth2{TokenURL: at, ClientID: "me", PrivateKey: "key"}, `no secret "key"`},
		{&oauth.OAuth2{TokenURL: at, ClientID: "me", PrivateKey: "odd"}, "not an unencrypted key in PEM"},
		{&oauth.OAuth2{TokenURL: at, ClientID: "me", Grant: "jwt_bearer", PrivateKey: "key"}, `no secret "key"`},
		{&oauth.OAuth2{TokenURL: at, Grant: "refresh_token", RefreshToken: "token"}, `no secret "token"`},
		{&oauth.OAuth2{TokenURL: at, Grant: "refresh_token", RefreshToken: "odd", ClientID: "me", ClientSecret: "client"}, `no secret "client"`},
		{&oauth.Azure{Tenant: "t", ClientID: "me", ClientSecret: "client", Authority: server.URL}, `no secret "client"`},
		{&oauth.Azure{Tenant: "t", ClientID: "me", Certificate: "odd", Authority: server.URL}, "not an unencrypted key in PEM"},
		{&oauth.Google{Key: "key", TokenURL: at}, `no secret "key"`},
		{&oauth.Google{Key: "odd", TokenURL: at}, "not the JSON of a service account"},
	} {
		remotetest.Fails(t, c.from, none, c.words)
	}
	if n := server.Calls.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestJWTBearer(t *testing.T) {
	t.Parallel()
	keys := remotetest.Keys()
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, header := keys.Claims(t, r.FormValue("assertion"), jose.RS256)
		if claims["iss"] != "me" || claims["sub"] != "user@example.com" || claims["aud"] != "https://audience" || header.KeyID != "k" ||
			r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			t.Errorf("%v", claims)
		}
		remotetest.Reply(200, remotetest.Token("for-the-user", 600))(w, r)
	})
	env := server.Env(map[string]string{"rsa": keys.RSA, "ec": keys.EC}, nil)
	remotetest.Wants(t, &oauth.OAuth2{
		TokenURL: server.URL, Grant: "jwt_bearer", PrivateKey: "rsa", KeyID: "k", Issuer: "me", Subject: "user@example.com", Audience: "https://audience",
	}, env, "for-the-user")
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		token, err := jwt.ParseSigned(r.FormValue("client_assertion"), []jose.SignatureAlgorithm{jose.ES256})
		var claims jwt.Claims
		if err == nil {
			err = token.UnsafeClaimsWithoutVerification(&claims)
		}
		if err != nil || claims.Issuer != "me" || claims.Subject != "me" || !slices.Equal(claims.Audience, jwt.Audience{server.URL + "/x"}) || r.FormValue("client_id") != "me" {
			t.Errorf("%v: %+v, %v", err, claims, r.Form)
		}
		remotetest.Reply(200, remotetest.Token("as-a-client", 600))(w, r)
	})
	remotetest.Wants(t, &oauth.OAuth2{TokenURL: server.URL + "/x", ClientID: "me", PrivateKey: "ec", Subject: "another"}, env, "as-a-client")
}

// TestAssertionsThatAreRefused checks that the grant is gone only if a second, new assertion is refused as well, and
// the clocks agree.
func TestAssertionsThatAreRefused(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]bool{}
	var ahead time.Duration
	var accept int
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		text := r.PostFormValue("assertion")
		fresh := !seen[text]
		seen[text] = true
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		if len(seen) == accept && fresh {
			remotetest.Reply(200, remotetest.Token("accepted", 60))(w, r)
			return
		}
		remotetest.Reply(400, map[string]string{"error": "invalid_grant", "error_description": "no " + text})(w, r)
	})
	from := &oauth.OAuth2{TokenURL: server.URL, Grant: "jwt_bearer", PrivateKey: "key", Issuer: "me"}
	env := server.Env(map[string]string{"key": remotetest.Keys().RSA}, nil)
	fetch := func(by time.Duration, after int) error {
		mu.Lock()
		clear(seen)
		ahead, accept = by, after
		mu.Unlock()
		_, err := from.Fetch(t.Context(), env)
		return err
	}
	if err := fetch(0, 2); err != nil || len(seen) != 2 {
		t.Errorf("a second assertion that is accepted: %v, of %d", err, len(seen))
	}
	if err := fetch(0, 3); !remote.IsGone(err) || len(seen) != 2 {
		t.Errorf("both assertions are refused: %v, of %d", err, len(seen))
	}
	for _, by := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		err := fetch(by, 3)
		refused, ok := errors.AsType[*remote.Error](err)
		if remote.IsGone(err) || !ok || (refused.Skew-by).Abs() > 10*time.Second || !strings.Contains(err.Error(), "the gateway's clock is ") || len(seen) != 1 {
			t.Errorf("the server's clock is ahead by %v: %v, of %d", by, err, len(seen))
		}
	}
}

// TestValidation checks that each configuration mistake is reported at its key.
func TestValidation(t *testing.T) {
	t.Parallel()
	const at = "https://login.example.com/token"
	for _, c := range []struct {
		from remote.Source
		keys string
	}{
		{&oauth.OAuth2{TokenURL: at, ClientID: "a", ClientSecret: "b"}, ""},
		{&oauth.OAuth2{TokenURL: "http://login.example.com", ClientID: "a", ClientSecret: "b"}, "token_url"},
		{&oauth.OAuth2{TokenURL: at + "?a=b", ClientID: "a", PrivateKey: "b"}, "token_url"},
		{&oauth.OAuth2{TokenURL: at}, "client_id"},
		{&oauth.OAuth2{TokenURL: at, ClientID: "a", ClientSecret: "b", PrivateKey: "c"}, "client_id"},
		{&oauth.OAuth2{TokenURL: at, Grant: "client_credentials", ClientID: "a", ClientSecret: "b", Auth: "post", RefreshToken: "c"}, "refresh_token auth"},
		{&oauth.OAuth2{TokenURL: at, Grant: "jwt_bearer", PrivateKey: "a", Issuer: "b", Auth: "body"}, ""},
		{&oauth.OAuth2{TokenURL: at, Grant: "jwt_bearer", PrivateKey: "a"}, "private_key"},
		{&oauth.OAuth2{TokenURL: at, Grant: "refresh_token"}, "refresh_token"},
		{&oauth.OAuth2{TokenURL: at, Grant: "password"}, "grant"},
		{&oauth.Azure{Tenant: "acme.example.com", ClientID: "a", Certificate: "b", Scope: "https://x/.default"}, ""},
		{&oauth.Azure{Tenant: "../x", ClientID: "a", ClientSecret: "b", Scope: "a b", Authority: "ftp://x"}, "tenant scope authority"},
		{&oauth.Azure{Tenant: "t", ClientID: "a", ClientSecret: "b", Certificate: "c"}, "client_id scope"},
		{&oauth.Google{Key: "a", Scopes: []string{"b"}}, ""},
		{&oauth.Google{Key: "a", Audience: "https://x", TokenURL: "http://[::1]:80"}, ""},
		{&oauth.Google{Scopes: []string{"b"}, Audience: "c", TokenURL: "x"}, "key scopes token_url"},
		{&oauth.Google{Key: "a"}, "scopes"},
	} {
		var keys []string
		c.from.Validate(func(key, format string, args ...any) {
			keys = append(keys, key)
			if text := fmt.Sprintf(format, args...); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%+v: %s: %q", c.from, key, text)
			}
		})
		if got := strings.Join(keys, " "); got != c.keys {
			t.Errorf("%+v: problems at %q, want %q", c.from, got, c.keys)
		}
	}
}

// TestPlaces checks that the log has only the host of the URL.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for want, from := range map[string]remote.Source{
		"login.example.com:8443":    &oauth.OAuth2{TokenURL: "https://login.example.com:8443/canary"},
		"?":                         &oauth.OAuth2{TokenURL: "https://login example"},
		"login.microsoftonline.com": &oauth.Azure{Tenant: "acme"},
		"login.example.us":          &oauth.Azure{Tenant: "acme", Authority: "https://login.example.us/"},
		"oauth2.googleapis.com":     &oauth.Google{},
	} {
		if got := from.Place(); got != want {
			t.Errorf("%+v is at %q, want %q", from, got, want)
		}
	}
}
