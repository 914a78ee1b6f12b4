package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/assertion"
	"boxgate/secrets/remote"
)

const googleTokenURL = "https://oauth2.googleapis.com/token"

// googleTime is the maximum lifetime of Google's tokens.
const googleTime = time.Hour

// Google gets tokens as a service account of Google Cloud.
type Google struct {
	Key      string   `yaml:"key"`       // name of a secret: the key file of the service account, as JSON
	Scopes   []string `yaml:"scopes"`    // of an access token; or
	Audience string   `yaml:"audience"`  // of an ID token, as for Cloud Run and IAP
	Subject  string   `yaml:"subject"`   // the user to act for, by domain-wide delegation
	TokenURL string   `yaml:"token_url"` // empty: Google's. The one in the key file is ignored
}

// Validate implements [remote.Source].
func (g *Google) Validate(fail remote.Fail) {
	if g.Key == "" {
		fail("key", "is missing; give the name of the secret with the key file of the service account")
	}
	if (len(g.Scopes) == 0) == (g.Audience == "") {
		fail("scopes", "give either scopes, for an access token, or an audience, for an ID token")
	}
	if g.TokenURL != "" {
		if err := remote.CheckURL(g.TokenURL); err != nil {
			fail("token_url", "%v", err)
		}
	}
}

// Needs implements [remote.Source].
func (g *Google) Needs() []string { return []string{g.Key} }

// Place implements [remote.Source].
func (g *Google) Place() string { return hostOf(g.url()) }

func (g *Google) url() string {
	if g.TokenURL == "" {
		return googleTokenURL
	}
	return g.TokenURL
}

// Fetch implements [remote.Source].
func (g *Google) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	q := question{url: g.url(), form: url.Values{"grant_type": {jwtBearer}}}
	a, err := q.sendAsserted(ctx, d, func(form url.Values) error {
		signed, err := g.assert(ctx, d)
		form.Set("assertion", signed.Reveal())
		return err
	})
	switch {
	case err != nil:
		return remote.Value{}, err
	case g.Audience != "":
		return idToken(a, d.Now())
	}
	v, err := a.value()
	v.Lifetime = min(v.Lifetime, googleTime)
	return v, err
}

// assert signs the assertion of the service account.
func (g *Google) assert(ctx context.Context, d remote.Env) (name.Secret, error) {
	text, err := d.Secret(ctx, g.Key)
	if err != nil {
		return name.Secret{}, err
	}
	var file struct {
		Email string `json:"client_email"`
		Key   string `json:"private_key"`
		KeyID string `json:"private_key_id"`
	}
	if json.Unmarshal([]byte(text.Reveal()), &file) != nil || file.Email == "" || file.Key == "" {
		return name.Secret{}, errors.New("the key is not the JSON of a service account, with client_email and private_key")
	}
	signer, err := assertion.Parse(name.NewSecret(file.Key), file.KeyID)
	if err != nil {
		return name.Secret{}, err
	}
	more := map[string]any{}
	if g.Audience != "" {
		more["target_audience"] = g.Audience
	} else {
		more["scope"] = strings.Join(g.Scopes, " ")
	}
	return signer.Sign(assertion.Claims{
		Issuer: file.Email, Subject: g.Subject, Audience: g.url(), Lifetime: assertionTime, More: more,
	}, d.Now())
}

// idToken returns the ID token of an answer, with the lifetime from its exp claim. The token is not verified: it came
// from the issuer over TLS, and is only passed on to the server that checks it.
func idToken(a answer, now time.Time) (remote.Value, error) {
	parts := strings.Split(a.IDToken, ".")
	if len(parts) != 3 {
		return remote.Value{}, remote.ErrAnswer("ID token")
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Expires == 0 {
		return remote.Value{}, remote.ErrAnswer("ID token that expires")
	}
	left := min(remote.TimeLeft(time.Unix(claims.Expires, 0), a.head, now), googleTime)
	if left <= 0 {
		return remote.Value{}, remote.ErrExpired
	}
	return remote.Value{Secret: name.NewSecret(a.IDToken), Lifetime: left}, nil
}
