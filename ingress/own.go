package ingress

import (
	"net"
	"net/http"
)

// This part serves requests to targets with a Handler. The engine treats the handler like a box: all checks, limits, timeouts and cuts
// of requests to boxes apply, and [boxgate/ingress/local] is the connection. A box sees neither the request nor a connection, and
// is not woken. The handler authenticates its requests.

// acquireOwn takes a place for a request that this process serves, and reports whether there was one. Such a request takes two
// descriptors instead of one, and memory of the gateway.
func (g *core) acquireOwn(v *visit) bool {
	if v.target.Handler == nil {
		return true
	}
	v.own = g.own.acquire(string(v.target.Box), v.network)
	return v.own
}

// leaveOwn releases the place.
func (g *core) leaveOwn(v *visit) {
	if v.own {
		v.own = false
		g.own.release(string(v.target.Box), v.network)
	}
}

// served serves a handler of the gateway. RemoteAddr is the visitor's address, with port 0. The fields in which the engine tells a
// box about the visitor are removed.
type served struct{ handler http.Handler }

// ServeHTTP implements [http.Handler].
func (s served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.RemoteAddr = net.JoinHostPort(r.Header.Get("X-Forwarded-For"), "0") // set by [forwarding.AppendOwn], and by no visitor
	for _, name := range ownNames {
		r.Header.Del(name)
	}
	s.handler.ServeHTTP(w, r)
}
