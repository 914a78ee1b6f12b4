package exchange

import (
	"boxgate/internal/handshake"
	"boxgate/proxy/h1"
	"boxgate/proxy/problem"
)

// Idempotent reports whether a request of the method without a body may be sent once more (RFC 9110, 9.2.2).
func Idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS":
		return true
	}
	return false
}

// ErrProtocol ends an exchange whose server broke the protocol.
var ErrProtocol = error(problem.Fixed("the upstream broke the protocol"))

// InterimMax bounds the 1xx responses before a final one.
const InterimMax = 32

// Upgraded returns why an answer of 101 does not make a WebSocket of the connection on which it was asked for; nil if it
// does. Anything else that the server might mean by it would be a tunnel for the box.
func Upgraded(request handshake.Fields, answer *h1.Response) error {
	if answer.Minor == 0 || !h1.EqualFold(answer.Upgrade, "websocket") { // which is nil unless Connection names it
		return ErrProtocol
	}
	return handshake.Verify(request, ResponseValues(answer))
}
