package http1

import (
	"boxgate/internal/h1"
	"boxgate/proxy/exchange"
)

// This file handles logins of connections (NTLM, Negotiate): what comes after one is the user's without any credential. So
// once a message has part of one, the client's connection and that to the server are bound: neither carries what is anybody
// else's, and when one ends, so does the other. A connection that is bound was never logged in by another client, as that
// would have bound it before.

// bindRequest binds the connection if the request, as the server gets it, is part of a login.
func (h *conn) bindRequest() {
	if !h.bound {
		h.bound = h1.LogsIn(h.Req.Fields) || exchange.SetsLogin(h.ruling.Set)
	}
}
