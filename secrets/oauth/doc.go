// Package oauth gets tokens from OAuth 2.0 token endpoints: by client credentials (RFC 6749, 4.4), with a signed
// assertion (RFC 7523) or a refresh token, and in the ways of Google's service accounts and Azure's applications.
package oauth
