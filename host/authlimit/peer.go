package authlimit

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// peerOf identifies the peer of a connection: the user on this host, or else the address, as a /64 network for IPv6. It
// runs for every connection before the next is accepted, so it must be cheap.
func peerOf(c net.Conn) string {
	switch c := c.(type) {
	case *net.UnixConn:
		if peer, err := credentialsOf(c); err == nil {
			return "user " + strconv.Itoa(peer.UID)
		}
	case *net.TCPConn:
		remote, ok := c.RemoteAddr().(*net.TCPAddr)
		local, okLocal := c.LocalAddr().(*net.TCPAddr)
		if !ok || !okLocal {
			break
		}
		a := remote.AddrPort().Addr().Unmap()
		if uid, here := socketUser(remote.AddrPort(), local.AddrPort()); here {
			return fmt.Sprintf("user %d", uid)
		}
		if a.Is6() {
			if network, err := a.WithZone("").Prefix(64); err == nil {
				return network.String()
			}
		}
		return a.String()
	}
	return "unknown"
}

// socketUser returns the owner of the other end of a TCP connection, if that is on this host and still open. It asks the
// kernel for that socket only; a dump would iterate over all sockets.
func socketUser(remote, local netip.AddrPort) (uid uint32, here bool) {
	from, to := remote.Addr().Unmap(), local.Addr().Unmap()
	question := make(diagQuestion, diagQuestionSize)
	question[0], question[1] = unix.AF_INET, unix.IPPROTO_TCP
	if from.Is6() {
		question[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(question[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(question[8:], remote.Port())
	binary.BigEndian.PutUint16(question[10:], local.Port())
	copy(question[12:28], from.AsSlice())
	copy(question[28:44], to.AsSlice())
	binary.NativeEndian.PutUint64(question[48:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	request.AddData(question)
	answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil || len(answers) != 1 || len(answers[0]) < diagAnswerSize {
		return 0, false
	}
	answer := answers[0]
	// For a remote peer the kernel may return a listener on the peer's port, which is not the other end. A socket closed
	// by its program has no inode, and its user is unknown.
	if binary.BigEndian.Uint16(answer[6:]) != local.Port() || binary.NativeEndian.Uint32(answer[68:]) == 0 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(answer[64:]), true
}

// diagQuestion is a struct inet_diag_req_v2 (linux/inet_diag.h); the answer is a struct inet_diag_msg.
type diagQuestion []byte

const (
	diagQuestionSize = 56
	diagAnswerSize   = 72
)

// Len implements [nl.NetlinkRequestData].
func (q diagQuestion) Len() int { return len(q) }

// Serialize implements [nl.NetlinkRequestData].
func (q diagQuestion) Serialize() []byte { return q }
