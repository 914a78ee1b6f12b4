package aws_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"boxgate/rule/sign"
	"boxgate/secrets/aws"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

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
	err = v4.NewSigner().SignHTTP(t.Context(), sdk.Credentials{AccessKeyID: "AKIATEST", SecretAccessKey: "canary/key"}, again,
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
	role := &aws.Role{ARN: "arn:aws:iam::123456789012:role/box", Region: "eu-central-1", Credentials: "root", Endpoint: server.URL + "/"}
	v, err := role.Fetch(t.Context(), server.Env(map[string]string{"root": awsCredentials}, nil))
	if err != nil {
		t.Fatal(err)
	}
	k, err := sign.ParseCredentials(v.Secret)
	if err != nil || k.AccessKeyID != "ASIATEST" || k.SecretAccessKey.Reveal() != "canary/s" || k.SessionToken.Reveal() != "canary+t==" ||
		time.Until(k.Expires) > time.Hour || time.Until(k.Expires) < 55*time.Minute {
		t.Errorf("%+v, %v", k, err)
	}
	remotetest.Fails(t, role, server.Env(map[string]string{"root": `{"AccessKeyId":"AKIATEST","SecretAccessKey":"canary/other"}`}, nil), "status 403", "SignatureDoesNotMatch")
	remotetest.Fails(t, role, server.Env(map[string]string{"root": `{"AccessKeyId":"AKIATEST","SecretAccessKey":"canary","Expiration":"2020-01-01T00:00:00Z"}`}, nil), "credentials have expired")
	remotetest.Fails(t, role, server.Env(map[string]string{"root": "canary"}, nil))
	remotetest.Fails(t, role, server.Env(nil, nil), `no secret "root"`)
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
	at := &aws.Secret{ID: "prod/db", Region: "eu-central-1", Credentials: "root", Field: "password", Endpoint: server.URL}
	remotetest.Wants(t, at, server.Env(map[string]string{"root": awsCredentials}, nil), "from-aws")
	remotetest.Fails(t, at, server.Env(map[string]string{"root": `{"AccessKeyId":"AKIA","SecretAccessKey":"canary"}`}, nil), "AccessDeniedException")
	absent := *at
	absent.Field = "other"
	remotetest.Fails(t, &absent, server.Env(map[string]string{"root": awsCredentials}, nil), "no text in the configured field")
}

// TestAnswersOfSTS checks that incomplete credentials, and those without an expiry, are not used.
func TestAnswersOfSTS(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, nil)
	env := server.Env(map[string]string{"root": awsCredentials}, nil)
	role := &aws.Role{ARN: "arn:aws:iam::123456789012:role/box", Region: "eu-central-1", Credentials: "root", Endpoint: server.URL, Duration: 20 * time.Minute}
	answer := func(id, key, token, expires string) {
		server.Answers(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("DurationSeconds") != "1200" || r.FormValue("RoleSessionName") != "boxgate" {
				t.Error(r.Form)
			}
			fmt.Fprintf(w, "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>"+
				"<SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>", id, key, token, expires)
		})
	}
	later := time.Now().Add(10 * time.Hour).UTC().Format(time.RFC3339)
	answer("ASIATEST", "key", "token", later)
	if v, err := role.Fetch(t.Context(), env); err != nil || v.Lifetime != 20*time.Minute {
		t.Errorf("it is used for %v, %v", v.Lifetime, err)
	}
	for _, c := range [][5]string{
		{"ASIATEST", "canary", "", later, "credentials that expire"}, {"ASIATEST", "canary", "t", "canary", "credentials that expire"},
		{"ASIATEST", "canary", "t", "2020-01-01T00:00:00Z", "already expired"}, {"", "canary", "t", later, "valid credentials"},
	} {
		answer(c[0], c[1], c[2], c[3])
		remotetest.Fails(t, role, env, c[4])
	}
	server.Answers(remotetest.Reply(200, "canary"))
	remotetest.Fails(t, role, env, "no credentials")
	server.Answers(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "canary") })
	remotetest.Fails(t, &aws.Secret{ID: "a", Region: "eu-central-1", Credentials: "root", Endpoint: server.URL}, env, "no JSON object")
	server.Answers(remotetest.Reply(200, map[string]any{"SecretBinary": []byte("from binary")}))
	remotetest.Wants(t, &aws.Secret{ID: "a", Region: "eu-central-1", Credentials: "root", Endpoint: server.URL, Stage: "AWSPREVIOUS"}, env, "from binary")
}

// TestValidation checks that each configuration mistake is reported at its key.
func TestValidation(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:iam::123456789012:role/box"
	for _, c := range []struct {
		from        remote.Source
		keys, place string
	}{
		{&aws.Role{ARN: arn, Region: "eu-central-1", Credentials: "c"}, "", arn},
		{&aws.Role{ARN: "arn:aws:iam::1:user/x", Region: "..", SessionName: "x", Duration: time.Minute, Endpoint: "http://x"}, "role_arn credentials session_name duration region endpoint", "arn:aws:iam::1:user/x"},
		{&aws.Secret{ID: "prod/db", Region: "eu-central-1", Credentials: "c"}, "", "prod/db at secretsmanager.eu-central-1.amazonaws.com"},
		{&aws.Secret{Region: "cn-north-1", Endpoint: "https://x.example.com"}, "id credentials", " at x.example.com"},
	} {
		var keys []string
		c.from.Validate(func(key, format string, args ...any) {
			if text := fmt.Sprintf(format, args...); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%+v: %s: %q", c.from, key, text)
			}
			keys = append(keys, key)
		})
		if got := strings.Join(keys, " "); got != c.keys || c.from.Place() != c.place || len(c.from.Needs()) != 1 {
			t.Errorf("%+v: problems at %q, want %q; it is at %q", c.from, got, c.keys, c.from.Place())
		}
	}
}
