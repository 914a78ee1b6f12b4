// Package oauth gets tokens from OAuth 2.0 token endpoints: with client credentials (RFC 6749, section 4.4), a signed
// assertion (RFC 7523) or a refresh token, and with the variants for Google's service accounts and Azure's
// applications.
package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/assertion"
	"boxgate/secrets/remote"
)

// Grants, and the ways in which a client sends its secret.
const (
	grantClient  = "client_credentials"
	grantJWT     = "jwt_bearer"
	grantRefresh = "refresh_token"

	authBasic = "basic"
	authBody  = "body"

	assertionTime = 5 * time.Minute
	jwtBearer     = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	jwtClient     = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

// OAuth2 gets access tokens from any OAuth 2.0 server.
type OAuth2 struct {
	TokenURL     string   `yaml:"token_url"`
	Grant        string   `yaml:"grant"` // client_credentials, jwt_bearer or refresh_token; empty: client_credentials
	ClientID     string   `yaml:"client_id"`
	ClientSecret string   `yaml:"client_secret"` // name of a secret
	Auth         string   `yaml:"auth"`          // where the client secret is sent: basic or body; empty: basic
	PrivateKey   string   `yaml:"private_key"`   // name of a secret: signs the assertion of the grant or of the client
	KeyID        string   `yaml:"key_id"`        // of the private key
	Issuer       string   `yaml:"issuer"`        // of the assertion; empty: client_id
	Subject      string   `yaml:"subject"`       // of the assertion of jwt_bearer; empty: the issuer
	Audience     string   `yaml:"audience"`      // of the assertion; empty: token_url
	Scopes       []string `yaml:"scopes"`
	Resource     string   `yaml:"resource"`      // parameter resource (RFC 8707)
	APIAudience  string   `yaml:"api_audience"`  // parameter audience, which some servers require
	RefreshToken string   `yaml:"refresh_token"` // name of a secret: the first refresh token

	unsaved *rotation // received, but not yet on disk
}

// Validate implements [remote.Source].
func (o *OAuth2) Validate(fail remote.Fail) {
	if err := remote.CheckURL(o.TokenURL); err != nil {
		fail("token_url", "%v", err)
	}
	switch o.grant() {
	case grantClient:
		if o.ClientID == "" || (o.ClientSecret == "") == (o.PrivateKey == "") {
			fail("client_id", "the grant client_credentials needs client_id, and either client_secret or private_key")
		}
	case grantJWT:
		if o.PrivateKey == "" || o.Issuer == "" && o.ClientID == "" {
			fail("private_key", "the grant jwt_bearer needs private_key, and issuer or client_id")
		}
	case grantRefresh:
		if o.RefreshToken == "" {
			fail("refresh_token", "the grant refresh_token needs the name of the secret with the first refresh token")
		}
	default:
		fail("grant", "use client_credentials, jwt_bearer or refresh_token")
	}
	if o.RefreshToken != "" && o.grant() != grantRefresh {
		fail("refresh_token", "is for the grant refresh_token")
	}
	if o.Auth != "" && o.Auth != authBasic && o.Auth != authBody {
		fail("auth", "use basic or body")
	}
}

func (o *OAuth2) grant() string {
	if o.Grant == "" {
		return grantClient
	}
	return o.Grant
}

// Needs implements [remote.Source].
func (o *OAuth2) Needs() (names []string) {
	for _, name := range []string{o.ClientSecret, o.PrivateKey, o.RefreshToken} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Place implements [remote.Source].
func (o *OAuth2) Place() string { return hostOf(o.TokenURL) }

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return u.Host
}

// Fetch implements [remote.Source].
func (o *OAuth2) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	if o.grant() == grantRefresh {
		return o.refresh(ctx, d)
	}
	q, err := o.question(ctx, d)
	if err != nil {
		return remote.Value{}, err
	}
	a, err := o.askByGrant(ctx, d, q)
	if err != nil {
		return remote.Value{}, err
	}
	return a.value()
}

// askByGrant completes a question according to the grant, and sends it.
func (o *OAuth2) askByGrant(ctx context.Context, d remote.Env, q question) (answer, error) {
	if o.grant() != grantJWT {
		q.form.Set("grant_type", grantClient)
		return q.send(ctx, d)
	}
	q.form.Set("grant_type", jwtBearer)
	return q.sendAsserted(ctx, d, func(form url.Values) error { return o.sign(ctx, d, form, "assertion") })
}

// question returns the common part of the requests of all grants.
func (o *OAuth2) question(ctx context.Context, d remote.Env) (question, error) {
	q := question{url: o.TokenURL, form: url.Values{}}
	for key, value := range map[string]string{"scope": strings.Join(o.Scopes, " "), "resource": o.Resource, "audience": o.APIAudience} {
		if value != "" {
			q.form.Set(key, value)
		}
	}
	switch {
	case o.ClientSecret != "":
		secret, err := d.Secret(ctx, o.ClientSecret)
		if err != nil {
			return q, err
		}
		if o.Auth != authBody {
			q.user, q.secret = o.ClientID, secret.Reveal()
			return q, nil
		}
		q.form.Set("client_secret", secret.Reveal())
	case o.PrivateKey != "" && o.grant() != grantJWT:
		q.form.Set("client_assertion_type", jwtClient)
		if err := o.sign(ctx, d, q.form, "client_assertion"); err != nil {
			return q, err
		}
	}
	if o.ClientID != "" {
		q.form.Set("client_id", o.ClientID)
	}
	return q, nil
}

// sign adds a signed assertion to a form.
func (o *OAuth2) sign(ctx context.Context, d remote.Env, form url.Values, field string) error {
	key, err := d.Secret(ctx, o.PrivateKey)
	if err != nil {
		return err
	}
	signer, err := assertion.Parse(key, o.KeyID)
	if err != nil {
		return err
	}
	c := assertion.Claims{Issuer: o.Issuer, Subject: o.Subject, Audience: o.Audience, Lifetime: assertionTime}
	if c.Issuer == "" {
		c.Issuer = o.ClientID
	}
	if c.Subject == "" || field == "client_assertion" {
		c.Subject = c.Issuer
	}
	if c.Audience == "" {
		c.Audience = o.TokenURL
	}
	token, err := signer.Sign(c, d.Now())
	form.Set(field, token.Reveal())
	return err
}

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

// maxSkew is the clock difference to a server above which a refused assertion does not mean that the grant is gone.
const maxSkew = time.Minute

// sendAsserted requests a token in exchange for the assertion that sign adds to the form. A server answers invalid_grant
// for a revoked grant, but also for an assertion that is not valid by its clock, or that it has seen before, as in the
// retry of a request without an answer. So the error means that the grant is gone only if a second, new assertion is
// refused too, and the clocks agree.
func (q question) sendAsserted(ctx context.Context, d remote.Env, sign func(url.Values) error) (a answer, err error) {
	for range 2 {
		if err := sign(q.form); err != nil {
			return answer{}, err
		}
		a, err = q.send(ctx, d)
		refused, ok := errors.AsType[*remote.Error](err)
		if !ok || !refused.Gone {
			return a, err
		}
		if skew := a.skew(d.Now()); skew.Abs() > maxSkew {
			refused.Gone, refused.Skew = false, skew
			return a, err
		}
	}
	return a, err
}

// skew returns how far the server's clock is ahead of the gateway's; 0 if unknown.
func (a *answer) skew(now time.Time) time.Duration {
	if a.head.Date.IsZero() {
		return 0
	}
	return a.head.Date.Sub(now).Round(time.Second)
}
