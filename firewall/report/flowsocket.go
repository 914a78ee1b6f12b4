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
	eventsPerRead = 64      // events per system call
	maxEventSize  = 2 << 10 // several times the size of an event
	gatherMillis  = 5       // how long to gather events that follow others
	maxReads      = 1 << 8  // reads in a row: a box that never stops must not prevent closing
)

// flowSocket receives events of connections that begin and end. It does not use the Go runtime's poller, which would wake
// for every event: there can be tens of thousands per second, and handling one costs less than a wakeup. The reader's
// thread waits for the first event; events of the next few milliseconds gather in the kernel and are read together.
type flowSocket struct {
	fd         int
	closeEvent int // an eventfd, readable once the socket is closing

	events [eventsPerRead]received
	parts  [eventsPerRead]unix.Iovec
	bufs   [eventsPerRead][maxEventSize]byte

	closing sync.Once
}

// received is the kernel's struct mmsghdr.
type received struct {
	header unix.Msghdr
	size   uint32
}

// openFlows opens a flowSocket in the namespace.
func openFlows(ns int) (*flowSocket, error) {
	s := &flowSocket{fd: -1}
	var err error
	if s.closeEvent, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	err = namespace.Do(netns.NsHandle(ns), func() error {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return os.NewSyscallError("socket", err)
	})
	if err == nil {
		err = errors.Join(os.NewSyscallError("bind", unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})), subscribeForwarded(s.fd))
	}
	if err != nil {
		s.release()
		return nil, err
	}
	for i := range s.events {
		s.parts[i].Base = &s.bufs[i][0]
		s.parts[i].SetLen(maxEventSize)
		s.events[i].header.Iov = &s.parts[i]
		s.events[i].header.SetIovlen(1)
	}
	return s, nil
}

// setBuffer sets how many bytes of events the kernel may buffer: without regard to the system's limit if privileged,
// otherwise up to that limit.
func (s *flowSocket) setBuffer(bytes int) error {
	err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
	if err != nil {
		err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
	}
	return os.NewSyscallError("setsockopt", err)
}

// run passes every event to handle until the socket is closed, including the last ones, and calls missed whenever the
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

// await waits until the socket is closing or, with events, until an event has arrived.
func (s *flowSocket) await(events bool, millis int) (closed bool, err error) {
	fds := []unix.PollFd{{Fd: int32(s.closeEvent), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
	if !events {
		fds = fds[:1]
	}
	if _, err := unix.Poll(fds, millis); err != nil && !errors.Is(err, unix.EINTR) {
		return false, os.NewSyscallError("poll", err)
	}
	return fds[0].Revents != 0, nil
}

// drain handles the events that the kernel has buffered. It returns their number, and whether the kernel has dropped any.
func (s *flowSocket) drain(handle func(netlink.Message)) (total int, lost bool, err error) {
	for range maxReads {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.events[0])), eventsPerRead, unix.MSG_DONTWAIT, 0, 0)
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
			split(s.bufs[i][:min(e.size, maxEventSize)], handle)
		}
	}
	return total, lost, nil
}

// split passes the messages of a datagram to handle. It stops at a malformed one.
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

// close makes run return. release closes the descriptors after that.
func (s *flowSocket) close() {
	s.closing.Do(func() { _, _ = unix.Write(s.closeEvent, binary.NativeEndian.AppendUint64(nil, 1)) })
}

func (s *flowSocket) release() {
	_ = unix.Close(s.closeEvent)
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
}
