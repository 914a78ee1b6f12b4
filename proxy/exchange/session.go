package exchange

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/live"
	"boxgate/proxy/origin"
	"boxgate/proxy/route"
	"boxgate/proxy/tunnel"
	"boxgate/proxy/usage"
)

// ClientIdle is how long a client connection may stay open without a request.
const ClientIdle = 5 * time.Minute

// Session is one client connection whose requests are judged one by one.
type Session struct {
	Core  *Core
	Box   *policy.Box
	Usage *usage.Box // counters of the box
	Name  name.Name  // SNI of an intercepted connection; zero on plain HTTP (Host decides per request)
	// Orig is the original destination. Its Addr is invalid for the sink and the explicit proxy; the destination then is a
	// name, or an address literal as authority of an explicit request.
	Orig   netip.AddrPort
	Port   uint16 // destination port; 0 on the explicit proxy: the port in each request's authority, default 80
	Secure bool   // TLS terminated: header rules apply
	// Explicit is set for requests to the explicit proxy: they must be in absolute form with the scheme http.
	Explicit bool
	Client   net.Conn            // TLS when secure; for plain HTTP a conn that replays the peeked bytes first
	TLS      *usage.Interception // of Client; nil without TLS termination
	Origin   origin.Client       // for the connections to servers
	Live     *live.Conn          // registration in the live table: byte counters (client's conn counts by itself), close for Recheck

	asked atomic.Bool
}

// Asked reports whether a request has begun, however malformed.
func (s *Session) Asked() bool { return s.asked.Load() }

// Core is shared by the exchanges of all sessions. All fields but Tokens, Secrets, Revoked and Clock are required.
type Core struct {
	Router     *route.Router
	Origins    *origin.Origins
	Tunnels    *tunnel.Pool
	Audit      Recorder
	Tokens     Tokens  // nil: forwarding rules refuse their requests
	Secrets    Secrets // nil: rules with secrets refuse their requests
	Log        *zap.Logger
	Revoked    Revocations
	identities identities
	Clock      func() time.Time // nil: the system's
	MaxStreams int              // requests of a box over HTTP/2 in progress at a time
}

// NewSession returns a session for one client connection of a box. The caller sets its destination and whether it is
// secure.
func (k *Core) NewSession(box *policy.Box, taken *usage.Box, live *live.Conn, conn net.Conn) *Session {
	return &Session{
		Core: k, Box: box, Usage: taken, Live: live, Client: conn,
		Origin: origin.Client{Box: box, Memory: taken.Memory, Denied: live.Denied},
	}
}

// Recorder records one event per decision. It never blocks. Safe for concurrent use.
type Recorder interface {
	Record(audit.Event)
}
