// Package clientcert is the kind of rules that authenticate the gateway to a server with a client certificate in the TLS handshake:
//
//	{"client_certificate": {"secret": "api-client"}}
//	{"client_certificate": {"certificate": {"secret": "pay-cert"}, "key": {"secret": "pay-key"}}}
//
// Secrets of the configuration contain the certificate, optionally followed by intermediate ones, and its private key, in PEM. Literals are
// refused.
package clientcert

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "client_certificate"

// Kind reads rules with a client certificate.
type Kind struct{}

// form is the JSON of the member.
type form struct {
	Secret      string     `json:"secret,omitempty" doc:"name of a secret with the certificate, intermediate ones and the private key, in PEM"`
	Certificate *secretRef `json:"certificate,omitempty" doc:"instead, one secret for the certificates"`
	Key         *secretRef `json:"key,omitempty" doc:"and another for the private key"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "clientCertificate" }

// secretRef names a secret.
type secretRef struct {
	Secret string `json:"secret" doc:"name of a secret in the gateway's configuration"`
}

// view is the JSON of an effect as shown by the API.
type view struct {
	Certificate string `json:"certificate" doc:"the secret that holds it"`
	Key         string `json:"key" doc:"the secret that holds its private key; it may be the same"`
}

// SchemaName is the name of the view in the description of the API.
func (view) SchemaName() string { return "clientView" }

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "authenticate to the server by a client certificate" }

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[*form]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[*view](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string { return `{"certificate": {"secret": "cert"}, "key": {"secret": "key"}}` }

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before := len(c.List)
	var e effect
	both := ""
	part := func(to *string) func(string, document.Value) {
		return func(at string, v document.Value) {
			v.Fields(at, `{"secret": name}`, &c.Problems, map[string]func(string, document.Value){
				"secret": func(at string, v document.Value) { *to = c.Source(at, v) },
			})
			if v.Kind == document.Object && !v.Has("secret") {
				c.Add(at, `has no "secret"`)
			}
		}
	}
	v.Fields(at, "an object with secret, or with certificate and key", &c.Problems, map[string]func(string, document.Value){
		"secret":      func(at string, v document.Value) { both = c.Source(at, v) },
		"certificate": part(&e.certificate),
		"key":         part(&e.key),
	})
	switch {
	case v.Kind != document.Object:
	case v.Has("secret") && (v.Has("certificate") || v.Has("key")):
		c.Add(at, `has "secret" beside "certificate" or "key"; give one secret that holds both, or two`)
	case v.Has("secret"):
		e = effect{both, both}
	case !v.Has("certificate") || !v.Has("key"):
		c.Add(at, `needs "secret", or "certificate" and "key"`)
	}
	if len(c.List) > before {
		return nil
	}
	return e
}

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{{Name: "client-certificate", Usage: "SECRET: a certificate and its key, in PEM, that the gateway authenticates with"}}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(_ any, a rule.Argument) (any, error) { return form{Secret: a.Text}, nil }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var v view
	if json.Unmarshal(shown, &v) != nil {
		return ""
	}
	return rule.LineWithSecret("(client certificate)", v.Certificate)
}

// effect presents a certificate. Its fields name the secrets with the certificate and its key.
type effect struct{ certificate, key string }

// Key implements [rule.Effect].
func (effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e effect) Document() any {
	if e.certificate == e.key {
		return form{Secret: e.key}
	}
	return form{Certificate: &secretRef{e.certificate}, Key: &secretRef{e.key}}
}

// Show implements [rule.Effect].
func (e effect) Show() any { return view{e.certificate, e.key} }

// Equal implements [rule.Effect].
func (e effect) Equal(other rule.Effect) bool { return e == other }

// Sources implements [rule.Sourced].
func (e effect) Sources() []string { return slices.Compact([]string{e.certificate, e.key}) }

// CertificateSource implements [rule.Identity].
func (e effect) CertificateSource() string { return e.certificate }

// KeySource implements [rule.Identity].
func (e effect) KeySource() string { return e.key }

// errCertificate refuses an unusable certificate or key without quoting it.
var errCertificate = errors.New("it is no certificate with its unencrypted private key, both in PEM")

// Certificate implements [rule.Identity].
func (effect) Certificate(certificate, key name.Secret) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(certificate.Reveal()), []byte(key.Reveal()))
	if err != nil {
		return tls.Certificate{}, errCertificate // the error may quote the text that should be a certificate
	}
	return pair, nil
}
