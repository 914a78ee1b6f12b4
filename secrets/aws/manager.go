package aws

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Secret is a secret of AWS Secrets Manager.
type Secret struct {
	ID          string `yaml:"id"` // name or ARN
	Region      string `yaml:"region"`
	Credentials string `yaml:"credentials"` // name of a secret: credentials to sign the request
	Field       string `yaml:"field"`       // of a value that is a JSON object; empty: the whole value
	Stage       string `yaml:"stage"`       // of the version; empty: AWSCURRENT
	Endpoint    string `yaml:"endpoint"`    // empty: the region's
}

var secretID = regexp.MustCompile(`^[A-Za-z0-9/_+=.@:!-]{1,512}$`)

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
