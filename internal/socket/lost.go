package socket

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The functions in this file detect a peer that vanished: its host is gone, or a NAT or firewall forgot the connection.
// Such a peer sends no reset, and the kernel retransmits for about 15 minutes (tcp_retries2).
//
// TCP_USER_TIMEOUT would also end connections to a live peer that does not read for that long, for example during a
// paused upload (tcp(7): "buffered data may remain untransmitted (due to zero window size)").

const (
	// LostAfter is how long a peer may leave data unacknowledged or keep-alive probes unanswered.
	LostAfter = 20 * time.Second
	// VanishedAfter is when a silent peer is probably gone: requests that are safe to repeat move to another
	// connection.
	VanishedAfter = 700 * time.Millisecond
	// VanishedLook is when to check for [VanishedAfter] after sending.
	VanishedLook = 1500 * time.Millisecond

	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

// KeepAlive makes the kernel detect within about [LostAfter] that an idle peer is gone.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}
}

// SetKeepAlive applies [KeepAlive] to a bare socket. Errors mean that the socket is closed and are ignored.
func SetKeepAlive(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
}

// State returns the TCP state of c or of the connection it wraps, such as unix.BPF_TCP_ESTABLISHED. It returns
// unix.BPF_TCP_CLOSE if there is no open TCP socket.
func State(c net.Conn) uint8 {
	state := uint8(unix.BPF_TCP_CLOSE)
	if raw := rawOf(c); raw != nil {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				state = info.State
			}
		})
	}
	return state
}

// Unanswered returns how long the peer of a socket has not acknowledged data that was retransmitted at least twice.
// Otherwise it returns 0. A peer that acknowledges everything but no longer reads leaves no data unacknowledged, so it
// counts as alive.
func Unanswered(fd int) time.Duration {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Unacked == 0 || info.Retransmits < 2 {
		return 0
	}
	silent := time.Duration(info.Last_ack_recv) * time.Millisecond
	// The last acknowledgement may predate an idle period. The retransmission timeout doubles, so it bounds the time
	// since the data was sent.
	return min(silent, time.Duration(info.Rto)*time.Microsecond)
}

// UnansweredBy is [Unanswered] for c or the TCP connection it wraps. It returns 0 if there is none.
func UnansweredBy(c net.Conn) (silent time.Duration) {
	if raw := rawOf(c); raw != nil {
		_ = raw.Control(func(fd uintptr) { silent = Unanswered(int(fd)) })
	}
	return silent
}

func rawOf(c net.Conn) syscall.RawConn {
	tcp, ok := TCP(c)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}
