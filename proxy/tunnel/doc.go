// Package tunnel moves bytes both ways between a client and an origin server, unread or as they come out of TLS, until both
// sides have ended or neither has said anything for the idle timeout.
package tunnel
