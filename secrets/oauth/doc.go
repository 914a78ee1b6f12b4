// Package oauth gets tokens from OAuth 2.0 token endpoints: with client credentials (RFC 6749, section 4.4), a signed
// assertion (RFC 7523) or a refresh token, and with the variants for Google's service accounts and Azure's
// applications.
package oauth
