package proxy

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/proxy/origin"
	"boxgate/proxy/socket"
	"boxgate/proxy/usage"
)

// session is one client connection whose requests are judged one by one.
type session struct {
	p     *Proxy
	box   *policy.Box
	usage *usage.Box  // what is counted for the box
	name  policy.Name // SNI of an intercepted connection; zero on plain HTTP (Host decides per request)
	// orig is the original destination as the box asked. Its Addr is invalid when that was the sink or the explicit
	// proxy: then only a name, or an address literal as authority of an explicit request, says where to go.
	orig   netip.AddrPort
	port   uint16 // destination port; on the explicit proxy 0: each request's authority names its own (80 if it does not)
	secure bool   // TLS terminated: header rules apply
	// explicit says that the requests came to the explicit proxy: they must be in absolute form with the scheme http.
	explicit bool
	client   net.Conn      // *tls.Conn when secure; for plain HTTP a conn that replays the peeked bytes first
	origin   origin.Client // for the connections to servers
	live     *liveConn     // registration in the live table: byte counters (client's conn counts by itself), close for Recheck
}

// newSession returns a session of a box over one client connection. Where it leads, and whether it is secure, is for the caller
// to say.
func (p *Proxy) newSession(box *policy.Box, taken *usage.Box, live *liveConn, conn net.Conn) *session {
	return &session{
		p: p, box: box, usage: taken, live: live, client: conn,
		origin: origin.Client{Box: box, Memory: taken.Memory, Denied: live.denied},
	}
}

// clientGone returns a check whether the client closed its connection while it waits for an answer. Where TLS is
// terminated the end of the TCP stream says so; on plain HTTP a client may close its sending side and still listen.
func clientGone(s *session) func() bool {
	tcp, ok := socket.TCP(s.client)
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
			gone = err != nil || info.State == unix.BPF_TCP_CLOSE || (s.secure && info.State == unix.BPF_TCP_CLOSE_WAIT)
		})
		return gone
	}
}
