package oauth

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/secrets/assertion"
	"boxgate/secrets/remote"
)

const azureAuthority = "https://login.microsoftonline.com"

// Azure gets access tokens as an application of Microsoft Entra ID.
type Azure struct {
	Tenant       string `yaml:"tenant"`
	ClientID     string `yaml:"client_id"`
	ClientSecret string `yaml:"client_secret"` // name of a secret; or
	Certificate  string `yaml:"certificate"`   // name of a secret: the certificate and its private key, in PEM
	Scope        string `yaml:"scope"`         // such as https://management.azure.com/.default
	Authority    string `yaml:"authority"`     // of a national cloud; empty: https://login.microsoftonline.com
}

var tenant = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.-]{0,127}$`)

// Validate implements [remote.Source].
func (z *Azure) Validate(fail remote.Fail) {
	if !tenant.MatchString(z.Tenant) {
		fail("tenant", "is not the ID or the domain of a tenant")
	}
	if z.ClientID == "" || (z.ClientSecret == "") == (z.Certificate == "") {
		fail("client_id", "give client_id, and either client_secret or certificate, the name of a secret")
	}
	if z.Scope == "" || strings.ContainsAny(z.Scope, " \t") {
		fail("scope", "give one scope, such as https://management.azure.com/.default")
	}
	if z.Authority != "" {
		if err := remote.CheckURL(z.Authority); err != nil {
			fail("authority", "%v", err)
		}
	}
}

// Needs implements [remote.Source].
func (z *Azure) Needs() []string {
	if z.Certificate != "" {
		return []string{z.Certificate}
	}
	return []string{z.ClientSecret}
}

// Place implements [remote.Source].
func (z *Azure) Place() string { return hostOf(z.url()) }

func (z *Azure) url() string {
	authority := azureAuthority
	if z.Authority != "" {
		authority = strings.TrimSuffix(z.Authority, "/")
	}
	return authority + "/" + z.Tenant + "/oauth2/v2.0/token"
}

// Fetch implements [remote.Source].
func (z *Azure) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	q := question{url: z.url(), form: url.Values{"grant_type": {grantClient}, "client_id": {z.ClientID}, "scope": {z.Scope}}}
	if err := z.authenticate(ctx, d, q.form); err != nil {
		return remote.Value{}, err
	}
	a, err := q.send(ctx, d)
	if err != nil {
		return remote.Value{}, err
	}
	return a.value()
}

// authenticate adds the application's credentials.
func (z *Azure) authenticate(ctx context.Context, d remote.Env, form url.Values) error {
	secret, err := d.Secret(ctx, z.Needs()[0])
	if err != nil {
		return err
	}
	if z.ClientSecret != "" {
		form.Set("client_secret", secret.Reveal())
		return nil
	}
	signer, err := assertion.Parse(secret, "")
	switch {
	case err != nil:
		return err
	case !signer.HasCertificate():
		return errors.New("the certificate is missing; put it into one file with its private key, in PEM")
	}
	token, err := signer.Sign(assertion.Claims{
		Issuer: z.ClientID, Subject: z.ClientID, Audience: z.url(), Lifetime: assertionTime, PSS: true,
	}, d.Now())
	form.Set("client_assertion_type", jwtClient)
	form.Set("client_assertion", token.Reveal())
	return err
}
