package socket

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file notices a peer that has vanished: one behind a NAT or a firewall that has forgotten the connection, or on a host
// that is gone. No reset tells of that, and the kernel sends again for a quarter of an hour (tcp_retries2).
//
// TCP_USER_TIMEOUT would end such connections without being asked, but also those of a peer that is there and does not read
// for that long (tcp(7): "buffered data may remain untransmitted (due to zero window size)"), as while an upload pauses.

const (
	// LostAfter is how long a peer may acknowledge nothing of what was sent to it, and not answer keep-alive.
	LostAfter = 20 * time.Second
	// VanishedAfter is when a peer has probably vanished: what can be asked again is asked on another connection.
	VanishedAfter = 700 * time.Millisecond
	// VanishedLook is when to look for that, once something was sent.
	VanishedLook = 1500 * time.Millisecond

	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

// KeepAlive has the kernel notice within [LostAfter], or a little more, that an idle peer has vanished.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}
}

// SetKeepAlive is [KeepAlive] for a bare socket. It fails only on one that is closed.
func SetKeepAlive(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
}

// State returns the state of a connection that is or wraps one of TCP, as unix.BPF_TCP_ESTABLISHED and its like; unix.BPF_TCP_CLOSE if it has
// none any more.
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

// Unanswered returns for how long the peer of a socket has acknowledged nothing, although something was sent to it again
// and again. It is 0 if all that was sent is acknowledged, or little time has passed. A peer that acknowledges and takes
// nothing more is there: then nothing is unacknowledged.
func Unanswered(fd int) time.Duration {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Unacked == 0 || info.Retransmits < 2 {
		return 0
	}
	silent := time.Duration(info.Last_ack_recv) * time.Millisecond
	// Before the connection was idle, if it was: the waits between what is sent again double, and so do not exceed this.
	return min(silent, time.Duration(info.Rto)*time.Microsecond)
}

// UnansweredBy is [Unanswered] for a connection that is or wraps one of TCP; else 0.
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
