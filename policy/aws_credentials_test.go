package policy

import (
	"strings"
	"testing"
	"time"

	"boxgate/policy/name"
)

// TestParseAWSCredentials: both forms, which come back from their own text as they were, and nothing of the value in an error.
func TestParseAWSCredentials(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, expires := range map[string]time.Time{
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"token"}`:                                                        {},
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T03:04:05Z"}`:             end,
		`{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"canary","SessionToken":"token","Expiration":"2030-01-02T04:04:05+01:00","x": 1}`: end,
	} {
		c, err := ParseAWSCredentials(name.NewSecret(text))
		if err != nil || c.AccessKeyID != "AKID" || c.SecretAccessKey.Reveal() != "canary" || c.SessionToken.Reveal() != "token" || !c.Expires.Equal(expires) {
			t.Errorf("%s: %+v %v", text, c, err)
		}
		again, err := ParseAWSCredentials(c.Secret())
		if err != nil || !sameCredentials(c, again) {
			t.Errorf("%s: came back as %+v, %v", text, again, err)
		}
		if err := CheckHeaderValue(c.Secret().Reveal()); err != nil {
			t.Errorf("the value does not fit in one line: %v", err)
		}
	}
	for _, text := range []string{
		"", "canary", `{}`, `["canary"]`, `"canary"`, `{"access_key_id":"AKID"}`, `{"access_key_id":"AK/ID","secret_access_key":"canary"}`,
		`{"access_key_id":"AKID","secret_access_key":"canary","session_token":"a\r\nb"}`, `{"AccessKeyId":"AKID","secret_access_key":"canary"}`,
		`{"AccessKeyId":"AKID","SecretAccessKey":"canary","Expiration":"canary"}`, `{"Version":2,"AccessKeyId":"AKID","SecretAccessKey":"canary"}`,
		`{"AccessKeyId":"AKIA\r\nX: y","SecretAccessKey":"canary"}`, `{"SecretAccessKey":"canary"}`,
	} {
		if c, err := ParseAWSCredentials(name.NewSecret(text)); err == nil || c != (AWSCredentials{}) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v %v", text, c, err)
		}
	}
}

func sameCredentials(a, b AWSCredentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey.Equal(b.SecretAccessKey) && a.SessionToken.Equal(b.SessionToken) && a.Expires.Equal(b.Expires)
}

func FuzzParseAWSCredentials(f *testing.F) {
	f.Add(`{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","SessionToken":"t","Expiration":"2026-11-23T01:02:03Z"}`)
	f.Add(`{"access_key_id":"AKIA","secret_access_key":"s"}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseAWSCredentials(name.NewSecret(text))
		if err != nil {
			return
		}
		if again, err := ParseAWSCredentials(c.Secret()); err != nil || !sameCredentials(c, again) {
			t.Errorf("%q is read as %+v, and then as %+v, %v", text, c, again, err)
		}
	})
}
