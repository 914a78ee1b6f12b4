package oauth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"boxgate/secrets/oauth"
	"boxgate/secrets/remote/remotetest"
)

// serviceAccount is the key file of a service account.
func serviceAccount(t *testing.T) string {
	t.Helper()
	file, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "robot@example.iam", "private_key": remotetest.Keys().RSA, "private_key_id": "k1",
		"token_uri": "https://attacker.example.net/", // only the configuration may choose the server that receives the key
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(file)
}

// idToken is an unsigned ID token with claims.
func idToken(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
}

func TestServiceAccount(t *testing.T) {
	t.Parallel()
	var server *remotetest.Server
	id := idToken(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(30*time.Minute).Unix()))
	server = remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, header := remotetest.Keys().Claims(t, r.FormValue("assertion"), jose.RS256)
		switch {
		case claims["iss"] != "robot@example.iam" || claims["aud"] != server.URL+"/token" || header.KeyID != "k1" ||
			r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
			t.Errorf("%v, %v", claims, r.Form)
		case claims["target_audience"] == "https://run.example.com":
			remotetest.Reply(200, map[string]string{"id_token": id})(w, r)
		case claims["scope"] == "x y" && claims["sub"] == "user@example.com":
			remotetest.Reply(200, remotetest.Token("ya29.canary", 7200))(w, r)
		}
	})
	env := server.Env(map[string]string{"key": serviceAccount(t)}, nil)
	access := &oauth.Google{Key: "key", Scopes: []string{"x", "y"}, Subject: "user@example.com", TokenURL: server.URL + "/token"}
	if left := remotetest.Wants(t, access, env, "ya29.canary"); left != time.Hour {
		t.Errorf("the access token is used for %v", left)
	}
	if needs := access.Needs(); !slices.Equal(needs, []string{"key"}) {
		t.Errorf("it needs %q", needs)
	}
	left := remotetest.Wants(t, &oauth.Google{Key: "key", Audience: "https://run.example.com", TokenURL: server.URL + "/token"}, env, id)
	if left > 31*time.Minute || left < 20*time.Minute {
		t.Errorf("the ID token is used for %v", left)
	}
}

// TestIDTokens checks that an ID token needs an expiry, by the clock of its server, and is used for at most an hour.
func TestIDTokens(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	env := server.Env(map[string]string{"key": serviceAccount(t)}, nil)
	from := &oauth.Google{Key: "key", Audience: "https://run.example.com", TokenURL: server.URL}
	served := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	answer := func(token string) {
		server.Answers(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", served.Format(http.TimeFormat))
			remotetest.Reply(200, map[string]string{"id_token": token})(w, r)
		})
	}
	expiring := func(in time.Duration) string { return idToken(fmt.Sprintf(`{"exp":%d}`, served.Add(in).Unix())) }
	for in, want := range map[time.Duration]time.Duration{10 * time.Minute: 10 * time.Minute, 5 * time.Hour: time.Hour} {
		answer(expiring(in))
		if left := remotetest.Wants(t, from, env, expiring(in)); left != want {
			t.Errorf("a token of %v is used for %v", in, left)
		}
	}
	for token, words := range map[string]string{
		"": "no ID token", "canary": "no ID token", "a.b.c.d": "no ID token", "e30.!.sig": "ID token that expires", idToken(`canary`): "ID token that expires",
		idToken(`{}`): "ID token that expires", idToken(`{"exp":"canary"}`): "ID token that expires", expiring(0): "already expired", expiring(-time.Hour): "already expired",
	} {
		answer(token)
		remotetest.Fails(t, from, env, words)
	}
}

// TestKeyFiles checks that a file that is not a service account's key is refused without being quoted.
func TestKeyFiles(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, remotetest.Token("canary", 60)))
	for file, words := range map[string]string{
		`canary`:                                      "not the JSON of a service account",
		`{"client_email":"canary"}`:                   "not the JSON of a service account",
		`{"private_key":"canary"}`:                    "not the JSON of a service account",
		`{"client_email":1,"private_key":"canary"}`:   "not the JSON of a service account",
		`{"client_email":"a","private_key":"canary"}`: "not an unencrypted key in PEM",
	} {
		remotetest.Fails(t, &oauth.Google{Key: "key", Scopes: []string{"x"}, TokenURL: server.URL}, server.Env(map[string]string{"key": file}, nil), words)
	}
	if n := server.Calls.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestAzure(t *testing.T) {
	t.Parallel()
	keys := remotetest.Keys()
	der, certificate := keys.Certificate(t)
	sum := sha256.Sum256(der)
	var server *remotetest.Server
	server = remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/acme.example.com/oauth2/v2.0/token" || r.FormValue("client_id") != "app" || r.FormValue("scope") != "https://x/.default" {
			t.Errorf("%s %v", r.URL, r.Form)
		}
		if signed := r.FormValue("client_assertion"); signed != "" {
			claims, header := keys.Claims(t, signed, jose.PS256)
			if claims["sub"] != "app" || claims["aud"] != server.URL+r.URL.Path ||
				header.ExtraHeaders["x5t#S256"] != base64.RawURLEncoding.EncodeToString(sum[:]) {
				t.Errorf("%v %v", claims, header)
			}
			remotetest.Reply(200, remotetest.Token("by-certificate", 3599))(w, r)
			return
		}
		if r.FormValue("client_secret") != "canary-azure" {
			t.Errorf("%v", r.Form)
		}
		remotetest.Reply(200, remotetest.Token("by-secret", 3599))(w, r)
	})
	at := oauth.Azure{Tenant: "acme.example.com", ClientID: "app", Scope: "https://x/.default", Authority: server.URL}
	bySecret, byCertificate := at, at
	bySecret.ClientSecret, byCertificate.Certificate = "z", "z"
	remotetest.Wants(t, &bySecret, server.Env(map[string]string{"z": "canary-azure"}, nil), "by-secret")
	remotetest.Wants(t, &byCertificate, server.Env(map[string]string{"z": keys.RSA + certificate}, nil), "by-certificate")
	remotetest.Fails(t, &byCertificate, server.Env(map[string]string{"z": keys.RSA}, nil), "certificate is missing")
	server.Answers(remotetest.Reply(401, map[string]string{"error": "invalid_client", "error_description": "no canary-azure"}))
	remotetest.Fails(t, &bySecret, server.Env(map[string]string{"z": "canary-azure"}, nil), "status 401", "invalid_client")
	if !strings.Contains(server.URL, bySecret.Place()) {
		t.Errorf("it is at %q", bySecret.Place())
	}
}
