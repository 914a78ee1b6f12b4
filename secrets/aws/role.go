package aws

import (
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"boxgate/policy/name"
	"boxgate/rule/sign"
	"boxgate/secrets/remote"
)

// AWS's limits for the duration of a session, and the default.
const (
	minRoleTime, maxRoleTime = 15 * time.Minute, 12 * time.Hour
	roleTime                 = time.Hour
)

// Role assumes a role by AWS STS. Its value is credentials in the format of [sign.ParseCredentials].
type Role struct {
	ARN         string        `yaml:"role_arn"`
	Region      string        `yaml:"region"`
	Credentials string        `yaml:"credentials"`  // name of a secret: credentials to sign the request
	SessionName string        `yaml:"session_name"` // shown in AWS's logs; empty: boxgate
	ExternalID  string        `yaml:"external_id"`
	Duration    time.Duration `yaml:"duration"` // 15 minutes to 12 hours; 0: one hour
	Policy      string        `yaml:"policy"`   // JSON: upper limit of the session's permissions
	Endpoint    string        `yaml:"endpoint"` // empty: the region's
}

var (
	roleARN     = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`)
	sessionName = regexp.MustCompile(`^[A-Za-z0-9+=,.@_-]{2,64}$`)
)

// Validate implements [remote.Source].
func (r *Role) Validate(fail remote.Fail) {
	if !roleARN.MatchString(r.ARN) {
		fail("role_arn", "is not the ARN of a role, such as arn:aws:iam::123456789012:role/name")
	}
	if r.Credentials == "" {
		fail("credentials", "is missing; give the name of the secret with AWS credentials")
	}
	if r.SessionName != "" && !sessionName.MatchString(r.SessionName) {
		fail("session_name", "use 2 to 64 letters, digits and +=,.@_-")
	}
	if r.Duration != 0 && (r.Duration < minRoleTime || r.Duration > maxRoleTime) {
		fail("duration", "use 15m to 12h")
	}
	validatePlace(r.Region, r.Endpoint, fail)
}

// Needs implements [remote.Source].
func (r *Role) Needs() []string { return []string{r.Credentials} }

// Place implements [remote.Source].
func (r *Role) Place() string { return r.ARN }

func (r *Role) duration() time.Duration {
	if r.Duration == 0 {
		return roleTime
	}
	return r.Duration
}

// form is the request in AWS's query protocol.
func (r *Role) form() url.Values {
	form := url.Values{
		"Action": {"AssumeRole"}, "Version": {"2011-06-15"}, "RoleArn": {r.ARN}, "RoleSessionName": {"boxgate"},
		"DurationSeconds": {strconv.Itoa(int(r.duration().Seconds()))},
	}
	for key, value := range map[string]string{"RoleSessionName": r.SessionName, "ExternalId": r.ExternalID, "Policy": r.Policy} {
		if value != "" {
			form.Set(key, value)
		}
	}
	return form
}

// sessionKeys are the credentials in STS's answer.
type sessionKeys struct {
	AccessKeyID     string `xml:"AssumeRoleResult>Credentials>AccessKeyId"`
	SecretAccessKey string `xml:"AssumeRoleResult>Credentials>SecretAccessKey"`
	SessionToken    string `xml:"AssumeRoleResult>Credentials>SessionToken"`
	Expiration      string `xml:"AssumeRoleResult>Credentials>Expiration"`
}

// Fetch implements [remote.Source].
func (r *Role) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	c := call{
		service: "sts", region: r.Region, url: endpointURL(r.Endpoint, "sts", r.Region), body: []byte(r.form().Encode()),
		header: http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}, "Accept": {"text/xml"}},
	}
	head, body, err := c.send(ctx, d, r.Credentials)
	if err != nil {
		return remote.Value{}, err
	}
	defer clear(body)
	var got sessionKeys
	if xml.Unmarshal(body, &got) != nil {
		return remote.Value{}, remote.ErrAnswer("credentials")
	}
	expires, err := time.Parse(time.RFC3339, got.Expiration)
	if err != nil || got.SessionToken == "" {
		return remote.Value{}, remote.ErrAnswer("credentials that expire")
	}
	left := min(remote.TimeLeft(expires, head, d.Now()), r.duration())
	if left <= 0 {
		return remote.Value{}, remote.ErrExpired
	}
	keys := sign.Credentials{
		AccessKeyID: got.AccessKeyID, SecretAccessKey: name.NewSecret(got.SecretAccessKey), SessionToken: name.NewSecret(got.SessionToken),
		Expires: d.Now().Add(left), // by the local clock, with which it is compared
	}
	if _, err := sign.ParseCredentials(keys.Secret()); err != nil {
		return remote.Value{}, remote.ErrAnswer("valid credentials")
	}
	return remote.Value{Secret: keys.Secret(), Lifetime: left}, nil
}
