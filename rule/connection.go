package rule

import (
	"crypto/tls"
	"reflect"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// This file defines the stages at which effects act on connections to servers. A rule has at most one effect for each stage. [Connections]
// assigns them once, when a policy is compiled.

// Identity is implemented by effects that authenticate the gateway to a server in the TLS handshake. Implementations are comparable. Equal
// ones make the same certificate from the same secrets.
type Identity interface {
	Effect
	Sourced
	// CertificateSource and KeySource name the secrets with the certificate and its private key, possibly the same. The decision log names
	// the first.
	CertificateSource() string
	KeySource() string
	// Certificate parses the values of the two secrets. The result has its Leaf. The error quotes neither value.
	Certificate(certificate, key name.Secret) (tls.Certificate, error)
}

// Redirect is implemented by effects that send requests to a proxy of the operator over TLS, instead of to their server.
type Redirect interface {
	Effect
	// Proxy returns the host, whose certificate is verified, and the port.
	Proxy() (n name.Name, port uint16)
	// URL returns the URL of the proxy without a trailing slash. It is the audience of the tokens that identify the box of a request.
	URL() string
	// Authority and Target return the Host and the target (path and query) of a request to the proxy, given its original target.
	Authority() string
	Target(target string) string
	// Introduction returns header fields for the proxy with the original destination of a request.
	Introduction(host name.Name, port uint16, target string) []match.Field
	// TokenField returns the name of the field for the token that identifies the box.
	TokenField() string
}

// LoginKind is implemented by kinds of logins, whose effects are [Login] or [ProxyLogin]. The member of such a kind is the only one of its
// entry, which applies to one host on one port and has no alternatives.
type LoginKind interface {
	Kind
	// Entry returns a type with the JSON of an entry with the member, for the description of the API.
	Entry() reflect.Type
	// UsualPort returns the port of most servers.
	UsualPort() uint16
	// OnWebPorts reports whether servers may use a port of HTTP.
	OnWebPorts() bool
}

// LoginForms has the JSON forms of a kind of logins: its member, its entry, and the view of its effects. Kinds embed it.
type LoginForms[Member, Entry, View any] struct{}

// Form implements [Kind].
func (LoginForms[Member, Entry, View]) Form() reflect.Type { return reflect.TypeFor[Member]() }

// Entry implements [LoginKind].
func (LoginForms[Member, Entry, View]) Entry() reflect.Type { return reflect.TypeFor[Entry]() }

// View implements [Viewed].
func (LoginForms[Member, Entry, View]) View() (form reflect.Type, doc string) {
	return reflect.TypeFor[*View](), ""
}

// OnWebPorts implements [LoginKind].
func (LoginForms[Member, Entry, View]) OnWebPorts() bool { return false }

// Login is implemented by effects that log in to a server of another protocol than HTTP for the box, which has no credentials for it. A
// connection to the host and port is either logged in by the gateway or refused.
type Login interface {
	Effect
	Sourced
	// URL names the server and the user for the decision log. authority is the host and port.
	URL(authority string) string
}

// LoginSource returns the name of the secret of a login; "" for a literal.
func LoginSource(l Login) string {
	for _, name := range l.Sources() {
		return name
	}
	return ""
}

// ProxyLogin is implemented by effects that authenticate the gateway to an upstream proxy. They do not apply to connections or requests of
// boxes to the proxy.
type ProxyLogin interface {
	Effect
	Sourced
	// IsFor reports whether the login may be used for a proxy with a URL of this scheme.
	IsFor(scheme string) bool
	Username() string
	Password() Value
}

// AdminOnly marks effects that only API keys with the role admin may set.
type AdminOnly interface {
	Effect
	OnlyForAdmins()
}

// WithoutValues is implemented by effects whose rules must not set values.
type WithoutValues interface {
	Effect
	// RefusesValues returns the reason, as a sentence whose subject is the effect.
	RefusesValues() string
}

// LegacyUpstream is implemented by effects that also offer old cipher suites to the server, in the TLS handshake.
type LegacyUpstream interface {
	Effect
	OffersLegacySuites()
}

// LegacyClients is implemented by effects that also accept old cipher suites from boxes. The handshake precedes the request, so it
// suffices that one alternative of the host has the effect.
type LegacyClients interface {
	Effect
	AcceptsLegacySuites()
}

// LenientReader is implemented by effects that read responses of HTTP/1.1 leniently. The server is not offered HTTP/2.
type LenientReader interface {
	Effect
	ReadsLeniently()
}

// CheckServer adds a mistake at the pointer of an effect on the server of a host if another effect of the rule is a [Redirect].
func CheckServer(at string, all []Effect, ps *document.Problems) {
	if Connections(all).Redirect != nil {
		ps.Add(at, "is about the server of the host, and forward_url sends the requests to another one")
	}
}

// Connection is the plan of one rule for connections: its effects by stage. The zero Connection has no effect.
type Connection struct {
	Identity Identity   // nil: no client certificate
	Redirect Redirect   // nil: requests are sent to their server
	Login    Login      // nil: the server speaks HTTP
	Proxy    ProxyLogin // nil: the host is not an upstream proxy with a login

	LegacyUpstream bool // the server is offered old cipher suites
	LegacyClients  bool // old cipher suites are accepted from boxes
	Lenient        bool // responses are read leniently, over HTTP/1.1
}

// Connections returns the plan of effects for connections.
func Connections(effects []Effect) (c Connection) {
	for _, e := range effects {
		switch e := e.(type) {
		case Identity:
			c.Identity = e
		case Redirect:
			c.Redirect = e
		case Login:
			c.Login = e
		case ProxyLogin:
			c.Proxy = e
		case LegacyUpstream:
			c.LegacyUpstream = true
		case LegacyClients:
			c.LegacyClients = true
		case LenientReader:
			c.Lenient = true
		}
	}
	return c
}
