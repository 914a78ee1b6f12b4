// Package aws gets credentials of roles from AWS STS, and values from AWS Secrets Manager. The credentials for its
// requests, and the ones of a role, have the format of [sign.ParseCredentials].
package aws

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"boxgate/internal/lazyregexp"
	"boxgate/policy/name"
	"boxgate/rule/sign"
	"boxgate/secrets/remote"
)

var region = lazyregexp.New(`^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$`)

// call is a signed request to a service.
type call struct {
	service, region, url string
	header               http.Header
	body                 []byte
}

// send signs a request with credentials from a secret, and sends it.
func (c call) send(ctx context.Context, d remote.Env, credentials string) (remote.Answer, []byte, error) {
	value, err := d.Secret(ctx, credentials)
	if err != nil {
		return remote.Answer{}, nil, err
	}
	keys, err := sign.ParseCredentials(value)
	switch {
	case err != nil:
		return remote.Answer{}, nil, fmt.Errorf("the secret with its credentials %w", err)
	case !keys.Expires.IsZero() && !d.Now().Before(keys.Expires):
		return remote.Answer{}, nil, errors.New("its credentials have expired")
	}
	if err := c.sign(ctx, keys, d.Now()); err != nil {
		return remote.Answer{}, nil, err
	}
	return d.Client.Do(ctx, remote.Request{
		URL: c.url, Header: c.header, Body: c.body, Hide: []name.Secret{keys.SecretAccessKey, keys.SessionToken},
	})
}

func (c call) sign(ctx context.Context, keys sign.Credentials, now time.Time) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil)
	if err != nil {
		return errors.New("the request cannot be made")
	}
	r.Header = c.header
	r.ContentLength = int64(len(c.body))
	sum := sha256.Sum256(c.body)
	err = v4.NewSigner().SignHTTP(ctx, aws.Credentials{
		AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey.Reveal(), SessionToken: keys.SessionToken.Reveal(),
	}, r, hex.EncodeToString(sum[:]), c.service, c.region, now)
	if err != nil {
		return errors.New("the request cannot be signed")
	}
	return nil
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return u.Host
}

// endpointURL returns the configured endpoint of a service, or the usual one of a region.
func endpointURL(configured, service, region string) string {
	if configured != "" {
		return configured
	}
	suffix := ".amazonaws.com"
	if len(region) > 3 && region[:3] == "cn-" {
		suffix = ".amazonaws.com.cn"
	}
	return "https://" + service + "." + region + suffix + "/"
}

func validatePlace(at, configured string, fail remote.Fail) {
	if !region.MatchString(at) {
		fail("region", "is not a region such as eu-central-1")
	}
	if configured != "" {
		if err := remote.CheckURL(configured); err != nil {
			fail("endpoint", "%v", err)
		}
	}
}

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
	roleARN     = lazyregexp.New(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`)
	sessionName = lazyregexp.New(`^[A-Za-z0-9+=,.@_-]{2,64}$`)
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

// Secret is a secret of AWS Secrets Manager.
type Secret struct {
	ID          string `yaml:"id"` // name or ARN
	Region      string `yaml:"region"`
	Credentials string `yaml:"credentials"` // name of a secret: credentials to sign the request
	Field       string `yaml:"field"`       // of a value that is a JSON object; empty: the whole value
	Stage       string `yaml:"stage"`       // of the version; empty: AWSCURRENT
	Endpoint    string `yaml:"endpoint"`    // empty: the region's
}

var secretID = lazyregexp.New(`^[A-Za-z0-9/_+=.@:!-]{1,512}$`)

// Validate implements [remote.Source].
func (s *Secret) Validate(fail remote.Fail) {
	if !secretID.MatchString(s.ID) {
		fail("id", "is not the name or ARN of a secret")
	}
	if s.Credentials == "" {
		fail("credentials", "is missing; give the name of the secret with AWS credentials")
	}
	validatePlace(s.Region, s.Endpoint, fail)
}

// Needs implements [remote.Source].
func (s *Secret) Needs() []string { return []string{s.Credentials} }

// Place implements [remote.Source].
func (s *Secret) Place() string {
	return s.ID + " at " + hostOf(endpointURL(s.Endpoint, "secretsmanager", s.Region))
}

// Fetch implements [remote.Source].
func (s *Secret) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	body := map[string]string{"SecretId": s.ID}
	if s.Stage != "" {
		body["VersionStage"] = s.Stage
	}
	text, err := json.Marshal(body)
	if err != nil {
		return remote.Value{}, err
	}
	c := call{
		service: "secretsmanager", region: s.Region, url: endpointURL(s.Endpoint, "secretsmanager", s.Region), body: text,
		header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}, "X-Amz-Target": {"secretsmanager.GetSecretValue"}},
	}
	var a struct {
		SecretString string
		SecretBinary []byte
	}
	_, answer, err := c.send(ctx, d, s.Credentials)
	if err != nil {
		return remote.Value{}, err
	}
	defer clear(answer)
	if json.Unmarshal(answer, &a) != nil {
		return remote.Value{}, remote.ErrAnswer("JSON object")
	}
	value := a.SecretString
	if value == "" {
		value = string(a.SecretBinary)
	}
	if s.Field == "" {
		return remote.Value{Secret: name.NewSecret(value)}, nil
	}
	return remote.FieldOf(value, s.Field)
}
