package exchange

import (
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/live"
	"boxgate/proxy/origin"
	"boxgate/proxy/route"
	"boxgate/proxy/socket"
	"boxgate/proxy/tunnel"
	"boxgate/proxy/usage"
)

// ClientIdle is how long a client connection may be without a request.
const ClientIdle = 5 * time.Minute

// Session is one client connection whose requests are judged one by one.
type Session struct {
	Core  *Core
	Box   *policy.Box
	Usage *usage.Box  // what is counted for the box
	Name  policy.Name // SNI of an intercepted connection; zero on plain HTTP (Host decides per request)
	// orig is the original destination as the box asked. Its Addr is invalid when that was the sink or the explicit
	// proxy: then only a name, or an address literal as authority of an explicit request, says where to go.
	Orig   netip.AddrPort
	Port   uint16 // destination port; on the explicit proxy 0: each request's authority names its own (80 if it does not)
	Secure bool   // TLS terminated: header rules apply
	// explicit says that the requests came to the explicit proxy: they must be in absolute form with the scheme http.
	Explicit bool
	Client   net.Conn      // *tls.Conn when secure; for plain HTTP a conn that replays the peeked bytes first
	Origin   origin.Client // for the connections to servers
	Live     *live.Conn    // registration in the live table: byte counters (client's conn counts by itself), close for Recheck
}

// Core is what the exchanges of all sessions share. All of it is required but secrets.
type Core struct {
	Router     *route.Router
	Origins    *origin.Origins
	Tunnels    *tunnel.Pool
	Audit      Recorder
	Secrets    Secrets // nil: a rule that names one refuses its requests
	Log        *zap.Logger
	MaxStreams int // requests of a box over HTTP/2 in progress at a time
}

// NewSession returns a session of a box over one client connection. Where it leads, and whether it is secure, is for the caller
// to say.
func (k *Core) NewSession(box *policy.Box, taken *usage.Box, live *live.Conn, conn net.Conn) *Session {
	return &Session{
		Core: k, Box: box, Usage: taken, Live: live, Client: conn,
		Origin: origin.Client{Box: box, Memory: taken.Memory, Denied: live.Denied},
	}
}

// ClientGone returns a check whether the client closed its connection while it waits for an answer. Where TLS is
// terminated the end of the TCP stream says so; on plain HTTP a client may close its sending side and still listen.
func ClientGone(s *Session) func() bool {
	tcp, ok := socket.TCP(s.Client)
	if !ok {
		return func() bool { return false }
	}
	return func() bool {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return true
		}
		gone := true
		_ = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			gone = err != nil || info.State == unix.BPF_TCP_CLOSE || (s.Secure && info.State == unix.BPF_TCP_CLOSE_WAIT)
		})
		return gone
	}
}

// Recorder takes one event for each decision. It never blocks. Safe for concurrent use.
type Recorder interface {
	Record(audit.Event)
}
