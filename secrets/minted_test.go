package secrets

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/policy"
	secretsaws "boxgate/secrets/aws"
	"boxgate/secrets/github"
	"boxgate/secrets/oauth"
)

// claimsOf verifies a token that was signed with the RSA key of the tests.
func claimsOf(t *testing.T, text string, algorithm jose.SignatureAlgorithm) (claims map[string]any, header jose.Header) {
	t.Helper()
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{algorithm})
	if err != nil {
		t.Errorf("%s: %v", text, err)
		return nil, header
	}
	var times jwt.Claims
	if err := token.Claims(keys().rsaPublic, &claims, &times); err != nil {
		t.Error(err)
		return nil, header
	}
	if err := times.ValidateWithLeeway(jwt.Expected{Time: time.Now()}, 0); err != nil || times.Expiry.Time().After(time.Now().Add(10*time.Minute)) {
		t.Errorf("the token is not valid now, or for long: %v, %v", err, claims)
	}
	return claims, token.Headers[0]
}

func TestGitHubApp(t *testing.T) {
	t.Parallel()
	expires := time.Now().Add(time.Hour)
	server := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, _ := claimsOf(t, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), jose.RS256)
		if claims["iss"] != "12345" {
			t.Errorf("the app is %v", claims)
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v3/repos/acme/web/installation":
			reply(200, map[string]any{"id": 678})(w, r)
		case "POST /api/v3/app/installations/678/access_tokens":
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"permissions":{"contents":"read"},"repositories":["web"]}` {
				t.Errorf("the scope is %s", body)
			}
			reply(201, map[string]any{"token": "ghs_canary", "expires_at": expires.UTC().Format(time.RFC3339)})(w, r)
		default:
			reply(404, map[string]string{"message": "Not Found"})(w, r)
		}
	})
	app := &github.App{
		AppID: "12345", Repository: "acme/web", PrivateKey: "key", API: server.URL + "/api/v3",
		Repositories: []string{"web"}, Permissions: map[string]string{"contents": "read"},
	}
	others := map[string]Source{"key": {File: file(t, keys().rsa)}}
	s, logs := asking(t, server, "github_app", app, others, nil)
	wants(t, s, "s", "ghs_canary")
	e := s.entries["s"]
	if left := e.expires.elapsed - s.now().elapsed; left > time.Hour-maxMargin || left < 55*time.Minute {
		t.Errorf("the token is used for %v", left)
	}
	quiet(t, logs)
	fails(t, s, "nothing")

	other := *app
	other.Repository = "acme/other"
	o, _ := asking(t, server, "github_app", &other, others, nil)
	fails(t, o, "s", "github_app app 12345 at ", "status 404")

	keyless, _ := asking(t, server, "github_app", app, map[string]Source{"key": {File: "/nonexistent/key"}}, nil)
	fails(t, keyless, "s", `it needs secret "key"`, "no such file")
	broken, _ := asking(t, server, "github_app", app, map[string]Source{"key": {File: file(t, "canary")}}, nil)
	fails(t, broken, "s", "not an unencrypted key in PEM")

	expires = time.Now().Add(-time.Hour)
	server.calls.Store(0)
	late, _ := asking(t, server, "github_app", app, others, nil)
	fails(t, late, "s", "already expired")
}

func TestServiceAccount(t *testing.T) {
	t.Parallel()
	var server *tokenServer
	server = newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, header := claimsOf(t, r.FormValue("assertion"), jose.RS256)
		switch {
		case claims["iss"] != "robot@example.iam" || claims["aud"] != server.URL+"/token" || header.KeyID != "k1" ||
			r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
			t.Errorf("%v, %v", claims, r.Form)
		case claims["target_audience"] == "https://run.example.com":
			payload := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(30*time.Minute).Unix()))
			reply(200, map[string]string{"id_token": "e30." + payload + ".sig"})(w, r)
		case claims["scope"] == "x y":
			reply(200, token("ya29.canary", 3599))(w, r)
		}
	})
	file, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "robot@example.iam", "private_key": keys().rsa, "private_key_id": "k1",
		"token_uri": "https://attacker.example.net/", // where the key goes is for the configuration to say
	})
	if err != nil {
		t.Fatal(err)
	}
	others := map[string]Source{"key": literal(string(file))}
	s, logs := asking(t, server, "google", &oauth.Google{Key: "key", Scopes: []string{"x", "y"}, TokenURL: server.URL + "/token"}, others, nil)
	wants(t, s, "s", "ya29.canary")
	quiet(t, logs)
	id, _ := asking(t, server, "google", &oauth.Google{Key: "key", Audience: "https://run.example.com", TokenURL: server.URL + "/token"}, others, nil)
	v, err := id.Secret(t.Context(), "s")
	if err != nil || !strings.HasPrefix(v.Reveal(), "e30.") {
		t.Errorf("%q, %v", v.Reveal(), err)
	}
	if left := id.entries["s"].expires.elapsed - id.now().elapsed; left > 30*time.Minute-maxMargin {
		t.Errorf("the ID token is used for %v", left)
	}
}

func TestAzure(t *testing.T) {
	t.Parallel()
	private, err := x509.ParsePKCS1PrivateKey(keys().rsaPrivateDER)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, keys().rsaPublic, private)
	if err != nil {
		t.Fatal(err)
	}
	pair := keys().rsa + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	sum := sha256.Sum256(der)
	var server *tokenServer
	server = newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/acme.example.com/oauth2/v2.0/token" || r.FormValue("client_id") != "app" || r.FormValue("scope") != "https://x/.default" {
			t.Errorf("%s %v", r.URL, r.Form)
		}
		if signed := r.FormValue("client_assertion"); signed != "" {
			claims, header := claimsOf(t, signed, jose.PS256)
			if claims["sub"] != "app" || claims["aud"] != server.URL+r.URL.Path ||
				header.ExtraHeaders["x5t#S256"] != base64.RawURLEncoding.EncodeToString(sum[:]) {
				t.Errorf("%v %v", claims, header)
			}
			reply(200, token("by-certificate", 3599))(w, r)
			return
		}
		if r.FormValue("client_secret") != "canary-azure" {
			t.Errorf("%v", r.Form)
		}
		reply(200, token("by-secret", 3599))(w, r)
	})
	at := oauth.Azure{Tenant: "acme.example.com", ClientID: "app", Scope: "https://x/.default", Authority: server.URL}
	secret, certificate := at, at
	secret.ClientSecret, certificate.Certificate = "z", "z"
	s, _ := asking(t, server, "azure", &secret, map[string]Source{"z": literal("canary-azure")}, nil)
	wants(t, s, "s", "by-secret")
	c, _ := asking(t, server, "azure", &certificate, map[string]Source{"z": {File: file(t, pair)}}, nil)
	wants(t, c, "s", "by-certificate")
	n, _ := asking(t, server, "azure", &certificate, map[string]Source{"z": {File: file(t, keys().rsa)}}, nil)
	fails(t, n, "s", "certificate is missing")
}

func TestJWTBearer(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, header := claimsOf(t, r.FormValue("assertion"), jose.RS256)
		if claims["iss"] != "me" || claims["sub"] != "user@example.com" || claims["aud"] != "https://audience" || header.KeyID != "k" {
			t.Errorf("%v", claims)
		}
		reply(200, token("for-the-user", 600))(w, r)
	})
	s, _ := asking(t, server, "oauth2", &oauth.OAuth2{
		TokenURL: server.URL, Grant: "jwt_bearer", PrivateKey: "key", KeyID: "k", Issuer: "me", Subject: "user@example.com", Audience: "https://audience",
	}, map[string]Source{"key": literal(keys().rsa)}, nil)
	wants(t, s, "s", "for-the-user")
	ec, logs := asking(t, server, "oauth2", &oauth.OAuth2{TokenURL: server.URL + "/x", ClientID: "me", PrivateKey: "key"},
		map[string]Source{"key": literal(keys().ec)}, nil)
	server.answers(func(w http.ResponseWriter, r *http.Request) {
		if _, err := jwt.ParseSigned(r.FormValue("client_assertion"), []jose.SignatureAlgorithm{jose.ES256}); err != nil && r.URL.Path == "/x" {
			t.Error(err)
		}
		reply(200, token("as-a-client", 600))(w, r)
	})
	eventually(t, "a token", func() bool { _, err := ec.Secret(t.Context(), "s"); return err == nil })
	quiet(t, logs)
}

// signed reports whether a request was signed with the credentials of the test.
func signed(t *testing.T, r *http.Request, service string) bool {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		t.Error(err)
	}
	again, err := http.NewRequestWithContext(t.Context(), r.Method, "https://"+r.Host+r.URL.RequestURI(), nil)
	if err != nil {
		t.Fatal(err)
	}
	again.ContentLength = int64(len(body))
	_, names, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	names, _, _ = strings.Cut(names, ",")
	for name := range strings.SplitSeq(names, ";") {
		if name != "host" && name != "content-length" {
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	sum := sha256.Sum256(body)
	err = v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: "AKIATEST", SecretAccessKey: "canary/key"}, again,
		hex.EncodeToString(sum[:]), service, "eu-central-1", at)
	return err == nil && again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

const awsCredentials = `{"AccessKeyId": "AKIATEST", "SecretAccessKey": "canary/key"}`

func TestAWSRole(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		if !signed(t, r, "sts") {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>another key</Message></Error></ErrorResponse>`)
			return
		}
		fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
			<AccessKeyId>ASIATEST</AccessKeyId><SecretAccessKey>canary/s</SecretAccessKey><SessionToken>canary+t==</SessionToken>
			<Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	role := &secretsaws.Role{ARN: "arn:aws:iam::123456789012:role/box", Region: "eu-central-1", Credentials: "root", Endpoint: server.URL + "/"}
	s, logs := asking(t, server, "aws_role", role, map[string]Source{"root": literal(awsCredentials)}, nil)
	v, err := s.Secret(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	k, err := policy.ParseAWSCredentials(v)
	if err != nil || k.AccessKeyID != "ASIATEST" || k.SecretAccessKey.Reveal() != "canary/s" || k.SessionToken.Reveal() != "canary+t==" ||
		time.Until(k.Expires) > time.Hour || time.Until(k.Expires) < 55*time.Minute {
		t.Errorf("%+v, %v", k, err)
	}
	wrong, more := asking(t, server, "aws_role", role, map[string]Source{"root": literal(`{"AccessKeyId":"AKIATEST","SecretAccessKey":"canary/other"}`)}, nil)
	fails(t, wrong, "s", "aws_role arn:aws:iam::123456789012:role/box", "status 403", "SignatureDoesNotMatch")
	old, _ := asking(t, server, "aws_role", role, map[string]Source{
		"root": literal(`{"AccessKeyId":"AKIATEST","SecretAccessKey":"canary","Expiration":"2020-01-01T00:00:00Z"}`)}, nil)
	fails(t, old, "s", "credentials have expired")
	quiet(t, logs)
	quiet(t, more)
}

func TestAWSSecretsManager(t *testing.T) {
	t.Parallel()
	server := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Amz-Target") != "secretsmanager.GetSecretValue" || !signed(t, r, "secretsmanager"):
			reply(400, map[string]string{"__type": "com.amazon#AccessDeniedException", "message": "another key"})(w, r)
		default:
			reply(200, map[string]string{"SecretString": `{"password":"from-aws"}`})(w, r)
		}
	})
	at := &secretsaws.Secret{ID: "prod/db", Region: "eu-central-1", Credentials: "root", Field: "password", Endpoint: server.URL}
	s, _ := asking(t, server, "aws_secret", at, map[string]Source{"root": literal(awsCredentials)}, nil)
	wants(t, s, "s", "from-aws")
	wrong, logs := asking(t, server, "aws_secret", at, map[string]Source{"root": literal(`{"AccessKeyId":"AKIA","SecretAccessKey":"canary"}`)}, nil)
	fails(t, wrong, "s", "AccessDeniedException")
	quiet(t, logs)
	absent := *at
	absent.Field = "other"
	a, _ := asking(t, server, "aws_secret", &absent, map[string]Source{"root": literal(awsCredentials)}, nil)
	fails(t, a, "s", "no text in the configured field")
}
