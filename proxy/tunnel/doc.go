// Package tunnel relays bytes between a client and an origin server, either unread or decrypted, until both sides have
// closed or the tunnel has been idle for the idle timeout.
package tunnel
