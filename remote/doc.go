// Package remote serves boxes that run elsewhere: sandboxes that reach the gateway over a network that others can read, and have
// no interface on this host.
//
// A client connects with TLS, shows the token of its box, and asks for a destination: by SOCKS5 (RFC 1928, 1929; CONNECT only) or
// as an HTTP proxy (CONNECT, and requests in absolute form). The connection then enters the explicit proxy as a connection of that
// box, so its policy, header rules and limits apply. This package does not decide about destinations.
//
// Before it has shown a token, a client is a stranger: it has a few seconds, and the listener bounds the number of strangers. Early data
// of TLS 1.3 is not accepted.
package remote
