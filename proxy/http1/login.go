package http1

import (
	"boxgate/proxy/exchange"
	"boxgate/relay/h1"
)

// This file handles connection-based logins (NTLM, Negotiate): requests after a login are the user's without any
// credential. So once a message has a part of a login, the client's connection and the server's are bound: neither carries
// requests of others, and when one ends, so does the other. A bound connection was never logged in by another client
// before, as that would have bound it.

// bindRequest binds the connection if the request, in its forwarded form, is part of a login.
func (h *conn) bindRequest() {
	if !h.bound {
		h.bound = h1.LogsIn(h.Req.Fields) || exchange.SetsLogin(h.decision.Set)
	}
}
