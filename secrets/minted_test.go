package secrets

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/go-jose/go-jose/v4"

	"boxgate/policy"
	secretsaws "boxgate/secrets/aws"
	"boxgate/secrets/github"
	"boxgate/secrets/remote/remotetest"
)

func TestGitHubApp(t *testing.T) {
	t.Parallel()
	expires := time.Now().Add(time.Hour)
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		claims, _ := remotetest.Keys().Claims(t, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), jose.RS256)
		if claims["iss"] != "12345" {
			t.Errorf("the app is %v", claims)
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v3/repos/acme/web/installation":
			remotetest.Reply(200, map[string]any{"id": 678})(w, r)
		case "POST /api/v3/app/installations/678/access_tokens":
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"permissions":{"contents":"read"},"repositories":["web"]}` {
				t.Errorf("the scope is %s", body)
			}
			remotetest.Reply(201, map[string]any{"token": "ghs_canary", "expires_at": expires.UTC().Format(time.RFC3339)})(w, r)
		default:
			remotetest.Reply(404, map[string]string{"message": "Not Found"})(w, r)
		}
	})
	app := &github.App{
		AppID: "12345", Repository: "acme/web", PrivateKey: "key", API: server.URL + "/api/v3",
		Repositories: []string{"web"}, Permissions: map[string]string{"contents": "read"},
	}
	others := map[string]Source{"key": {File: file(t, remotetest.Keys().RSA)}}
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
	server.Calls.Store(0)
	late, _ := asking(t, server, "github_app", app, others, nil)
	fails(t, late, "s", "already expired")
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
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
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
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Amz-Target") != "secretsmanager.GetSecretValue" || !signed(t, r, "secretsmanager"):
			remotetest.Reply(400, map[string]string{"__type": "com.amazon#AccessDeniedException", "message": "another key"})(w, r)
		default:
			remotetest.Reply(200, map[string]string{"SecretString": `{"password":"from-aws"}`})(w, r)
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
