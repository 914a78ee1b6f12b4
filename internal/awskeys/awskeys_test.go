package awskeys

import (
	"strings"
	"testing"
	"time"

	"boxgate/policy"
)

const canary = "canary/SecretKey+91b2"

func TestParse(t *testing.T) {
	t.Parallel()
	k, err := Parse(policy.NewSecret(`{
		"Version": 1, "AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "` + canary + `",
		"SessionToken": "token", "Expiration": "2026-11-23T01:02:03Z", "Other": 1
	}`))
	if err != nil || k.AccessKeyID != "ASIAEXAMPLE" || k.SecretAccessKey.Reveal() != canary || k.SessionToken.Reveal() != "token" ||
		!k.Expires.Equal(time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)) {
		t.Fatalf("%+v, %v", k, err)
	}
	again, err := Parse(k.Secret())
	if err != nil || again.SecretAccessKey.Reveal() != canary || again.SessionToken.Reveal() != "token" || !again.Expires.Equal(k.Expires) {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := policy.CheckHeaderValue(k.Secret().Reveal()); err != nil {
		t.Errorf("the value does not fit in one line: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", canary, `"` + canary + `"`, `{"SecretAccessKey":"` + canary + `"}`, `{"AccessKeyId":"AKIA"}`,
		`{"AccessKeyId":"AKIA\r\nX: y","SecretAccessKey":"` + canary + `"}`, `{"AccessKeyId":"AKIA","SecretAccessKey":"` + canary + `","Expiration":"` + canary + `"}`,
		`{"Version":2,"AccessKeyId":"AKIA","SecretAccessKey":"` + canary + `"}`,
	} {
		if k, err := Parse(policy.NewSecret(text)); err == nil || k != (Keys{}) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v, %v", text, k, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","SessionToken":"t","Expiration":"2026-11-23T01:02:03Z"}`)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := Parse(policy.NewSecret(text))
		if err != nil {
			return
		}
		if again, err := Parse(k.Secret()); err != nil || again.AccessKeyID != k.AccessKeyID || again.SecretAccessKey.Reveal() != k.SecretAccessKey.Reveal() {
			t.Errorf("%q is read as %+v, and then as %+v, %v", text, k, again, err)
		}
	})
}
