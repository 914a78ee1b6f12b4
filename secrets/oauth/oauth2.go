package oauth

import (
	"context"
	"net/url"
	"strings"
	"time"

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
