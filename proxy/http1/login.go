package http1

import (
	"errors"
	"os"
	"time"

	"boxgate/internal/h1"
	"boxgate/proxy/exchange"
)

// This file handles logins of connections (NTLM, Negotiate): what comes after one is the user's without any credential. So
// once a message has part of one, the client's connection and that to the server are bound: neither carries what is anybody
// else's, and when one ends, so does the other. A connection that is bound was never logged in by another client, as that
// would have bound it before.

// errUntied ends a client's connection whose bound connection to the server has ended: the client believes to be logged in.
var errUntied = errors.New("the connection to the server, on which the client had logged in, has ended")

// untiedCheck is how often a connection that waits for a request looks whether the server has ended the bound one.
const untiedCheck = time.Second

// bindRequest binds the connection if the request, as the server gets it, is part of a login.
func (h *conn) bindRequest() {
	if !h.bound {
		h.bound = h1.LogsIn(h.req.Fields) || exchange.SetsLogin(h.ruling.Set)
	}
}

// awaitBound is await with a bound connection to the server: nothing rests, and the end of either ends the other.
func (h *conn) awaitBound() error {
	h.giveOut()
	h.in.Relax()
	end := time.Now().Add(exchange.ClientIdle)
	for {
		next := time.Now().Add(untiedCheck)
		if next.After(end) {
			next = end
		}
		err := h.readUntil(next, h.in.Fill)
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded), !time.Now().Before(end):
			return err
		case !h.up.Quiet():
			return errClose
		}
	}
}
