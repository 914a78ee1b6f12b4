package oauth

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// maxLifetime bounds how long a token is used, whatever the server reports.
const maxLifetime = 24 * time.Hour

// question is a request to a token endpoint.
type question struct {
	url          string
	form         url.Values
	user, secret string // for basic authentication, unless user is empty
	once         bool
}

// answer is the response of a token endpoint (RFC 6749, section 5.1).
type answer struct {
	AccessToken  string      `json:"access_token"`
	IDToken      string      `json:"id_token"`
	TokenType    string      `json:"token_type"`
	RefreshToken string      `json:"refresh_token"`
	ExpiresIn    json.Number `json:"expires_in"` // a number, but a string with some servers
	head         remote.Answer
}

func (q question) send(ctx context.Context, d remote.Env) (answer, error) {
	header := http.Header{}
	if q.user != "" {
		r := http.Request{Header: header}
		r.SetBasicAuth(url.QueryEscape(q.user), url.QueryEscape(q.secret)) // RFC 6749, section 2.3.1
	}
	var a answer
	head, err := d.Client.JSON(ctx, remote.Request{
		URL: q.url, Form: q.form, Header: header, Once: q.once, Hide: []name.Secret{name.NewSecret(q.secret)},
	}, &a)
	a.head = head
	return a, err
}

// value returns the access token.
func (a *answer) value() (remote.Value, error) {
	if a.AccessToken == "" || a.TokenType != "" && !strings.EqualFold(a.TokenType, "Bearer") {
		return remote.Value{}, remote.ErrAnswer("bearer token")
	}
	left, err := a.lifetime()
	return remote.Value{Secret: name.NewSecret(a.AccessToken), Lifetime: left}, err
}

// lifetime returns how long the access token is valid; 0 if unknown.
func (a *answer) lifetime() (time.Duration, error) {
	if a.ExpiresIn == "" {
		return 0, nil
	}
	seconds, err := a.ExpiresIn.Float64()
	switch {
	case err != nil:
		return 0, remote.ErrAnswer("valid expires_in")
	case seconds <= 0:
		return 0, remote.ErrExpired
	}
	return time.Duration(min(seconds, maxLifetime.Seconds()) * float64(time.Second)), nil
}
