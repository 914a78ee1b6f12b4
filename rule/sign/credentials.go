package sign

import (
	"encoding/json"
	"errors"
	"time"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Credentials are what requests to AWS are signed with.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey name.Secret
	SessionToken    name.Secret // empty for a user's long-lived keys
	Expires         time.Time   // not to be used from then on; zero: they do not expire
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
// and session_token, or one as AWS's credential_process prints it. Unknown fields are ignored, so the output of `aws configure
// export-credentials` can be used as it is. The error shows nothing of it.
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

// Secret returns the credentials as the value of one secret, of one line: the inverse of [ParseCredentials].
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

// isAccessKeyID reports whether s may stand in a credential scope.
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
