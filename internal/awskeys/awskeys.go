// Package awskeys reads AWS credentials, which have several parts, from the value of one secret: a JSON object as AWS's
// own credential_process prints it. Unknown fields are ignored, so the output of `aws configure export-credentials` can be
// used as it is.
package awskeys

import (
	"encoding/json"
	"errors"
	"time"

	"boxgate/policy"
)

// Keys are the parts of AWS credentials.
type Keys struct {
	AccessKeyID     string
	SecretAccessKey policy.Secret
	SessionToken    policy.Secret // "" for keys that do not expire
	Expires         time.Time     // not to be used from then on; zero: they do not expire
}

// document is the JSON. Version is 1, or missing.
type document struct {
	Version         int        `json:",omitempty"`
	AccessKeyID     string     `json:"AccessKeyId"`
	SecretAccessKey string     `json:",omitempty"`
	SessionToken    string     `json:",omitempty"`
	Expiration      *time.Time `json:",omitempty"`
}

// Parse reads the value of a secret. The error quotes nothing of it.
func Parse(value policy.Secret) (Keys, error) {
	var d document
	if err := json.Unmarshal([]byte(value.Reveal()), &d); err != nil {
		return Keys{}, errors.New("it is not a JSON object with AccessKeyId and SecretAccessKey")
	}
	switch {
	case d.Version > 1:
		return Keys{}, errors.New("it is of an unknown version; use 1")
	case !isKeyID(d.AccessKeyID):
		return Keys{}, errors.New("it has no valid AccessKeyId")
	case d.SecretAccessKey == "":
		return Keys{}, errors.New("it has no SecretAccessKey")
	}
	k := Keys{AccessKeyID: d.AccessKeyID, SecretAccessKey: policy.NewSecret(d.SecretAccessKey), SessionToken: policy.NewSecret(d.SessionToken)}
	if d.Expiration != nil {
		k.Expires = *d.Expiration
	}
	return k, nil
}

// Secret is the inverse of [Parse].
func (k Keys) Secret() policy.Secret {
	d := document{Version: 1, AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), SessionToken: k.SessionToken.Reveal()}
	if !k.Expires.IsZero() {
		utc := k.Expires.UTC()
		d.Expiration = &utc
	}
	text, err := json.Marshal(d)
	if err != nil { // a year beyond 9999: nothing that expires then is usable
		return policy.Secret{}
	}
	return policy.NewSecret(string(text))
}

// isKeyID reports whether s can be the ID of an access key, which is sent in the clear.
func isKeyID(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(s) >= 4 && len(s) <= 128
}
