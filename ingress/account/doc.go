// Package account signs visitors of public URLs in with their accounts at an identity provider (OpenID Connect).
//
// The provider knows one address of the gateway, at one host for all URLs. A sign-in goes from the URL to that host, to the
// provider, back to that host, and back to the URL. Each step hands over to the next by a ticket in the address that the gateway has
// authenticated and that is bound to a cookie of the browser that it was made for: nobody can have another person's
// browser finish a sign-in that it began, or the other way round, and nobody can choose where it ends. The last ticket works once.
package account
