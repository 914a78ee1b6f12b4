package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

const literalKeys = `"{\"access_key_id\":\"AKID\",\"secret_access_key\":\"canary\"}"`

// parse reads the member of a rule's document.
func parse(t *testing.T, text string) (rule.Effect, error) {
	t.Helper()
	c := &rule.Context{}
	v, ok := document.Parse([]byte(text), &c.Problems)
	if !ok {
		t.Fatal(text, c.Err())
	}
	return Kind{}.Parse("/sign", v, c), c.Err()
}

// TestParse: both kinds of signatures, with what is given and what is not.
func TestParse(t *testing.T) {
	t.Parallel()
	e, err := parse(t, `{"aws": {"credentials": `+literalKeys+`, "region": "eu-central-1", "service": ["s3", "sts"]}}`)
	if s, ok := e.(*awsEffect); !ok || s.credentials.Source != "" || strings.Join(s.regions, ",") != "eu-central-1" || strings.Join(s.services, ",") != "s3,sts" {
		t.Errorf("%+v, %v", e, err)
	}
	e, err = parse(t, `{"hmac": {"key": {"secret": "k"}, "header": "x-sig", "template": "{method}\n{target}\n{body}", "encoding": "base64",
			"format": "v1={signature}", "timestamp": {"header": "x-time", "format": "rfc3339"}}}`)
	s, ok := e.(*hmacEffect)
	if !ok || s.key.Source != "k" || s.header != "X-Sig" || s.timestamp != "X-Time" || s.clock != "rfc3339" || s.encoding != "base64" {
		t.Fatalf("%+v, %v", e, err)
	}
	if hashed, err := s.HashesBody(&rule.Message{}); !hashed || err != nil {
		t.Error(hashed, err)
	}
	if got := (Kind{}).Line([]byte(`{"kind": "hmac", "secret": "k"}`)); got != "signed: hmac (k)" {
		t.Error(got)
	}
	if got := (Kind{}).Line([]byte(`1`)); got != "" {
		t.Error(got)
	}
}

// TestEqual: signatures are alike if they are the same for every request.
func TestEqual(t *testing.T) {
	t.Parallel()
	members := []string{
		`{"aws": {"credentials": {"secret": "k"}, "region": "a", "service": "s3"}}`, `{"aws": {"credentials": {"secret": "l"}, "region": "a", "service": "s3"}}`,
		`{"aws": {"credentials": ` + literalKeys + `, "region": "a", "service": "s3"}}`, `{"aws": {"credentials": ` + strings.ReplaceAll(literalKeys, "canary", "other") + `, "region": "a", "service": "s3"}}`,
		`{"aws": {"credentials": {"secret": "k"}, "region": ["a", "b"], "service": "s3"}}`, `{"aws": {"credentials": {"secret": "k"}, "region": "a", "service": "sts"}}`,
		`{"hmac": {"key": "a", "header": "X", "template": "t"}}`, `{"hmac": {"key": "b", "header": "X", "template": "t"}}`, `{"hmac": {"key": "a", "header": "Y", "template": "t"}}`,
		`{"hmac": {"key": "a", "header": "X", "template": "u"}}`, `{"hmac": {"key": "a", "header": "X", "template": "t", "encoding": "base64"}}`,
	}
	for i, a := range members {
		for k, b := range members {
			x, errX := parse(t, a)
			y, errY := parse(t, b)
			if errX != nil || errY != nil || x.Equal(y) != (i == k) {
				t.Errorf("%s and %s: %v %v", a, b, errX, errY)
			}
		}
	}
}

// TestParseCredentials: both forms, which come back from their own text as they were, and nothing of the value in an error.
func TestParseCredentials(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, expires := range map[string]time.Time{
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"token"}`:                                                        {},
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T03:04:05Z"}`:             end,
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T04:04:05+01:00","x": 1}`: end,
	} {
		c, err := ParseCredentials(name.NewSecret(text))
		if err != nil || c.AccessKeyID != "AKID" || c.SecretAccessKey.Reveal() != "canary" || c.SessionToken.Reveal() != "token" || !c.Expires.Equal(expires) {
			t.Errorf("%s: %+v %v", text, c, err)
		}
		again, err := ParseCredentials(c.Secret())
		if err != nil || !sameCredentials(c, again) {
			t.Errorf("%s: came back as %+v, %v", text, again, err)
		}
		if err := match.CheckHeaderValue(c.Secret().Reveal()); err != nil {
			t.Errorf("the value does not fit in one line: %v", err)
		}
	}
	for _, text := range []string{
		"", "canary", `{}`, `["canary"]`, `"canary"`, `{"access_key_id":"AKID"}`, `{"access_key_id":"AK/ID","secret_access_key":"canary"}`,
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"a\r\nb"}`, `{"AccessKeyId":"AKID","secret_access_key":"canary"}`,
		`{"AccessKeyId":"AKID","SecretAccessKey":"canary","Expiration":"canary"}`, `{"Version":2,"AccessKeyId":"AKID","SecretAccessKey":"canary"}`,
		`{"AccessKeyId":"AKIA\r\nX: y","SecretAccessKey":"canary"}`, `{"SecretAccessKey":"canary"}`,
	} {
		if c, err := ParseCredentials(name.NewSecret(text)); err == nil || c != (Credentials{}) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v %v", text, c, err)
		}
	}
}

func sameCredentials(a, b Credentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey.Equal(b.SecretAccessKey) && a.SessionToken.Equal(b.SessionToken) && a.Expires.Equal(b.Expires)
}

func FuzzParseCredentials(f *testing.F) {
	f.Add(`{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","SessionToken":"t","Expiration":"2026-11-23T01:02:03Z"}`)
	f.Add(`{"access_key_id":"AKIA","secret_access_key":"s"}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCredentials(name.NewSecret(text))
		if err != nil {
			return
		}
		if again, err := ParseCredentials(c.Secret()); err != nil || !sameCredentials(c, again) {
			t.Errorf("%q is read as %+v, and then as %+v, %v", text, c, again, err)
		}
	})
}

// changing changes the body of a request when a part of the text to sign is written.
type changing struct {
	text string
	r    *request
}

func (c *changing) Write(p []byte) (int, error) {
	if len(p) > 0 {
		c.r.Body = append([]byte("changed "), c.r.Body...)
	}
	c.text += string(p)
	return len(p), nil
}

// TestBodyIsHashedOnce: a body of a mebibyte costs one hash, however often the template has it.
func TestBodyIsHashedOnce(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("body"))
	w := &changing{r: &request{Message: &rule.Message{Body: []byte("body")}}}
	fill(w, strings.Repeat("{body_sha256}", 3), "", w.r)
	if want := strings.Repeat(hex.EncodeToString(sum[:]), 3); w.text != want {
		t.Errorf("signed %s, want %s", w.text, want)
	}
}
