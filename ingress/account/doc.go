// Package account signs visitors of public URLs in with their accounts at an identity provider (OpenID Connect).
//
// One address of the gateway, on one host for all URLs, is registered with the provider. A sign-in goes from the URL to
// that host, to the provider, back to that host, and back to the URL. Each step passes an authenticated ticket in the
// address to the next, bound to a cookie of the browser: a sign-in that began in one browser cannot be completed in
// another, in either direction, and its destination cannot be changed. The last ticket works once.
package account
