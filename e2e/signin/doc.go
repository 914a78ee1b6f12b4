// Package signin tests who gets into the dashboard of a real gateway: with an API key or at a real identity provider, over TLS, and
// that strangers, other sites and ended sessions do not. Browsers are in package ui beside it; here a client sends what a browser
// would, and what an attacker can.
package signin
