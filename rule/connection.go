package rule

import (
	"crypto/tls"
	"reflect"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// This file has the stages at which effects act on connections to servers, rather than on the content of requests. A rule has at most
// one effect for each of them: [Connections] finds them once, when a policy is compiled.

// Identity is implemented by effects that authenticate the gateway to a server in the TLS handshake. Implementations are comparable: equal
// ones make the same certificate of the same values.
type Identity interface {
	Effect
	Sourced
	// CertificateSource and KeySource name the secrets of the configuration that have the certificate and its private key. They may be the
	// same. The first is the one that the decision log names.
	CertificateSource() string
	KeySource() string
	// Certificate returns the certificate that these values of the two make, with its Leaf. The error shows nothing of them.
	Certificate(certificate, key name.Secret) (tls.Certificate, error)
}

// Redirect is implemented by effects that send requests to a proxy of the operator's, over TLS, in the place of their server.
type Redirect interface {
	Effect
	// Proxy returns the host, which has to prove its name, and the port.
	Proxy() (n name.Name, port uint16)
	// URL returns the URL of the proxy without a slash at its end. It is the audience of the tokens that say which box a request is from.
	URL() string
	// Authority and Target return the Host and the target (path and query) of a request, given its own target.
	Authority() string
	Target(target string) string
	// Introduction returns header fields for the proxy with the original destination of a request.
	Introduction(host name.Name, port uint16, target string) []match.Field
	// TokenField is the name of the field for a token of the box.
	TokenField() string
}

// LoginKind is implemented by kinds of logins, whose effects are [Login] or [ProxyLogin]. The member of such a kind stands alone in its entry,
// which is for one host on one port and has no alternatives.
type LoginKind interface {
	Kind
	// Entry is a type whose JSON an entry with the member has, for the description of the API.
	Entry() reflect.Type
	// UsualPort is the port of most servers.
	UsualPort() uint16
	// OnWebPorts reports whether servers may have a port of HTTP.
	OnWebPorts() bool
}

// LoginForms are the JSON forms of a kind of logins: of its member, of its entry, and of the view of an effect. A kind embeds it.
type LoginForms[Member, Entry, View any] struct{}

// Form implements [Kind].
func (LoginForms[Member, Entry, View]) Form() reflect.Type { return reflect.TypeFor[Member]() }

// Entry implements [LoginKind].
func (LoginForms[Member, Entry, View]) Entry() reflect.Type { return reflect.TypeFor[Entry]() }

// View implements [Viewed].
func (LoginForms[Member, Entry, View]) View() (form reflect.Type, doc string) {
	return reflect.TypeFor[*View](), ""
}

// OnWebPorts implements [LoginKind]: only some protocols have servers there.
func (LoginForms[Member, Entry, View]) OnWebPorts() bool { return false }

// Login is implemented by effects that have the gateway log in to a server of another protocol than HTTP for the box, which has no
// credentials for it. A connection to its host and port either is one that the gateway logs in, or is refused.
type Login interface {
	Effect
	Sourced
	// URL names the server and the user for the decision log. authority is the host and port.
	URL(authority string) string
}

// LoginSource returns the name of the secret that a login needs; "" if that is a literal.
func LoginSource(l Login) string {
	for _, name := range l.Sources() {
		return name
	}
	return ""
}

// ProxyLogin is implemented by effects that authenticate the gateway to an upstream proxy. They are of no use to a box that connects
// there, and apply to no request.
type ProxyLogin interface {
	Effect
	Sourced
	// IsFor reports whether the login may be given to a proxy that is spoken to by a scheme.
	IsFor(scheme string) bool
	Username() string
	Password() Value
}

// AdminOnly is implemented by effects that only API keys with the role of an administrator may set.
type AdminOnly interface {
	Effect
	OnlyForAdmins()
}

// WithoutValues is implemented by effects beside which a rule may set no values.
type WithoutValues interface {
	Effect
	// RefusesValues completes a sentence that begins with the effect: why it refuses them.
	RefusesValues() string
}

// Connection is what the effects of one rule do to connections. The zero value changes nothing.
type Connection struct {
	Identity Identity   // nil: none
	Redirect Redirect   // nil: requests are sent to their server
	Login    Login      // nil: the server speaks HTTP
	Proxy    ProxyLogin // nil: the host is no upstream proxy that wants a login
}

// Connections returns what effects do to connections.
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
		}
	}
	return c
}
