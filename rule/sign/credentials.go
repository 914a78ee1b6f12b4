package sign

import (
	"encoding/json"
	"errors"
	"time"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Credentials are credentials of AWS for signing requests.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey name.Secret
	SessionToken    name.Secret // empty for long-lived keys of a user
	Expires         time.Time   // zero: they do not expire
}

var errCredentials = errors.New(
	`is not a JSON object of "access_key_id", "secret_access_key" and, for temporary credentials, "session_token"`)

// credentialProcess is the JSON that AWS's credential_process prints. Version is 1, or missing.
type credentialProcess struct {
	Version int        `json:"Version,omitempty"`
	ID      string     `json:"AccessKeyId"`
	Key     string     `json:"SecretAccessKey,omitempty"`
	Token   string     `json:"SessionToken,omitempty"`
	Expires *time.Time `json:"Expiration,omitempty"`
}

// ParseCredentials reads credentials from the value of one secret: a JSON object of access_key_id, secret_access_key
// and session_token, or the output of AWS's credential_process. Unknown fields are ignored, so that the output of `aws configure
// export-credentials` is accepted. The error does not quote the value.
func ParseCredentials(s name.Secret) (Credentials, error) {
	var parts struct {
		ID    string `json:"access_key_id"`
		Key   string `json:"secret_access_key"`
		Token string `json:"session_token"`
		credentialProcess
	}
	if json.Unmarshal([]byte(s.Reveal()), &parts) != nil || parts.Version > 1 {
		return Credentials{}, errCredentials
	}
	c := Credentials{AccessKeyID: parts.ID, SecretAccessKey: name.NewSecret(parts.Key), SessionToken: name.NewSecret(parts.Token)}
	if other := &parts.credentialProcess; other.ID != "" {
		c = Credentials{AccessKeyID: other.ID, SecretAccessKey: name.NewSecret(other.Key), SessionToken: name.NewSecret(other.Token)}
	}
	if parts.Expires != nil {
		c.Expires = *parts.Expires
	}
	if !isAccessKeyID(c.AccessKeyID) || c.SecretAccessKey.Reveal() == "" || match.CheckHeaderValue(c.SessionToken.Reveal()) != nil {
		return Credentials{}, errCredentials
	}
	return c, nil
}

// Secret is the inverse of [ParseCredentials]. The value has one line.
func (c Credentials) Secret() name.Secret {
	d := credentialProcess{
		Version: 1, ID: c.AccessKeyID, Key: c.SecretAccessKey.Reveal(), Token: c.SessionToken.Reveal(),
	}
	if !c.Expires.IsZero() {
		utc := c.Expires.UTC()
		d.Expires = &utc
	}
	text, err := json.Marshal(d)
	if err != nil { // a year beyond 9999: nothing that expires then is usable
		return name.Secret{}
	}
	return name.NewSecret(string(text))
}

// isAccessKeyID reports whether s is allowed in a credential scope.
func isAccessKeyID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !name.IsWordByte(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}
