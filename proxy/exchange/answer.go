package exchange

import (
	"slices"

	"boxgate/internal/h1"
	"boxgate/internal/handshake"
	"boxgate/policy"
	"boxgate/proxy/problem"
)

// Idempotent reports whether a request of the method without a body may be retried (RFC 9110, 9.2.2).
func Idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS":
		return true
	}
	return false
}

// SetsLogin reports whether one of the headers that a rule sets is part of the login of a connection.
func SetsLogin(set []policy.Header) bool {
	return slices.ContainsFunc(set, func(h policy.Header) bool { return !h.Remove && h1.IsLogin(h.Name, h.Value.Reveal()) })
}

// ErrProtocol ends an exchange whose server broke the protocol.
var ErrProtocol = error(problem.Fixed("the upstream broke the protocol"))

// InterimMax is the maximum number of 1xx responses before a final one.
const InterimMax = 32

// Upgraded returns an error unless the 101 response switches the connection to WebSocket, as requested. Any other
// protocol would give the box a tunnel.
func Upgraded(request handshake.Fields, answer *h1.Response) error {
	if answer.Minor == 0 || !h1.EqualFold(answer.Upgrade, "websocket") { // which is nil unless Connection names it
		return ErrProtocol
	}
	return handshake.Verify(request, ResponseValues(answer))
}
