package report

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
)

const (
	eventsAtOnce = 64      // how many events one system call reads
	longestEvent = 2 << 10 // several times over
	gatherMillis = 5       // how long events gather that follow others
	mostReads    = 1 << 8  // in a row: a box that never stops must not keep the reader from being closed
)

// flowSocket hears of connections that begin and end. The runtime's poller does not know it: that is woken for every
// event, of which there can be tens of thousands a second, and each costs less than its waking. The reader's thread waits
// for the first event; those that come within a few milliseconds after it gather in the kernel and are read together.
type flowSocket struct {
	fd     int
	closes int // an eventfd: readable once the socket is to be closed

	events [eventsAtOnce]received
	parts  [eventsAtOnce]unix.Iovec
	bufs   [eventsAtOnce][longestEvent]byte

	closing sync.Once
}

// received is the kernel's struct mmsghdr.
type received struct {
	header unix.Msghdr
	size   uint32
}

// openFlows opens one in the namespace.
func openFlows(ns int) (*flowSocket, error) {
	s := &flowSocket{fd: -1}
	var err error
	if s.closes, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	err = namespace.Do(netns.NsHandle(ns), func() error {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return os.NewSyscallError("socket", err)
	})
	if err == nil {
		err = errors.Join(os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})), hearForwarded(s.fd))
	}
	if err != nil {
		s.release()
		return nil, err
	}
	for i := range s.events {
		s.parts[i].Base = &s.bufs[i][0]
		s.parts[i].SetLen(longestEvent)
		s.events[i].header.Iov = &s.parts[i]
		s.events[i].header.SetIovlen(1)
	}
	return s, nil
}

// setBuffer sets how many bytes of events the kernel may hold: beyond the system's limit, which takes privilege, or up to
// that limit.
func (s *flowSocket) setBuffer(bytes int) error {
	err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
	if err != nil {
		err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
	}
	return os.NewSyscallError("setsockopt", err)
}

// run passes every event to handle until the socket is closed, the last ones included, and calls missed whenever the
// kernel has dropped events because they came too fast. Call it once.
func (s *flowSocket) run(handle func(netlink.Message), missed func()) error {
	for {
		closed, err := s.await(true, -1)
		if err != nil {
			return err
		}
		n, lost, err := s.drain(handle)
		if lost {
			missed()
		}
		if closed || err != nil {
			return err
		}
		if n > 0 {
			if _, err = s.await(false, gatherMillis); err != nil {
				return err
			}
		}
	}
}

// await waits until the socket is to be closed, or, with events, until one has come.
func (s *flowSocket) await(events bool, millis int) (closed bool, err error) {
	fds := []unix.PollFd{{Fd: int32(s.closes), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
	if !events {
		fds = fds[:1]
	}
	if _, err := unix.Poll(fds, millis); err != nil && !errors.Is(err, unix.EINTR) {
		return false, os.NewSyscallError("poll", err)
	}
	return fds[0].Revents != 0, nil
}

// drain passes on what the kernel holds, and returns how much that was, and whether the kernel has dropped any.
func (s *flowSocket) drain(handle func(netlink.Message)) (total int, lost bool, err error) {
	for range mostReads {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.events[0])), eventsAtOnce, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return total, lost, nil
		case unix.ENOBUFS:
			lost = true
			continue
		default:
			return total, lost, os.NewSyscallError("recvmmsg", errno)
		}
		total += int(n)
		for i := range s.events[:n] {
			e := &s.events[i]
			lost = lost || e.header.Flags&unix.MSG_TRUNC != 0
			split(s.bufs[i][:min(e.size, longestEvent)], handle)
		}
	}
	return total, lost, nil
}

// split passes on the messages of a datagram. It ends where one is malformed.
func split(b []byte, handle func(netlink.Message)) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return
		}
		handle(netlink.Message{Header: netlink.Header{
			Length: uint32(size), Type: netlink.HeaderType(binary.NativeEndian.Uint16(b[4:])), Flags: netlink.HeaderFlags(binary.NativeEndian.Uint16(b[6:])),
		}, Data: b[unix.SizeofNlMsghdr:size]})
		b = b[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
}

// close makes run return. The descriptors are given back by release, when nobody uses them any more.
func (s *flowSocket) close() {
	s.closing.Do(func() { _, _ = unix.Write(s.closes, binary.NativeEndian.AppendUint64(nil, 1)) })
}

func (s *flowSocket) release() {
	_ = unix.Close(s.closes)
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
}
