package report

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// recordFlowEvent records two events for a forwarded connection: one when it begins, one with bytes and duration when it has ended.
// The recorder decides which of them are logged separately.
func (r *Reports) recordFlowEvent(m netlink.Message) {
	if c, phase := decodeFlow(m); phase != "" {
		r.recordFlow(&c, phase)
	}
}

// recordFlow records the event of a connection, if it belongs to a box.
func (r *Reports) recordFlow(c *flow.Entry, phase audit.Phase) {
	if c.Protocol == "" || c.Mark&network.FlowForwarded == 0 {
		return
	}
	r.mu.Lock()
	t := r.byFlow[c.Owner()]
	r.mu.Unlock()
	if t == nil {
		return
	}
	e := t.event()
	e.Protocol, e.Addr, e.Port = c.Protocol, c.Dst.Addr(), c.Dst.Port()
	e.Verdict, e.Action = policy.Allow, audit.ActionKernel
	e.Phase, e.Conn = phase, connName(c.ID)
	e.Answered = c.Status&flow.Assured != 0
	switch phase {
	case audit.PhaseOpen:
		if e.Protocol == policy.TCP {
			r.started.Add(1)
		}
	case audit.PhaseOngoing:
		if start := c.Start; !start.IsZero() {
			e.Time = start
		}
	case audit.PhaseEnd:
		e.BytesOut, e.BytesIn = int64(c.Orig.Bytes), int64(c.Reply.Bytes)
		if start, stop := c.Start, c.Stop; !start.IsZero() && stop.After(start) {
			e.Duration = stop.Sub(start)
		}
	}
	r.cfg.Audit.Record(r.withAllowance(e))
}

// connName identifies the connection in its events.
func connName(id uint32) string {
	text := make([]byte, 0, 10)
	return string(hex.AppendEncode(append(text, "ct"...), []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}))
}

// withAllowance adds why the connection was allowed, by the current policy: the policy under which it began may be gone.
func (r *Reports) withAllowance(e audit.Event) audit.Event {
	e.Reason = name.ReasonNotDenied
	if d, ok := r.explain(e); ok && d.Allowed() {
		e.Reason, e.Rule, e.Version = d.Reason, d.Rule, d.Version
	} else if ok && e.Phase == audit.PhaseEnd {
		e.Reason = name.ReasonPolicyChanged
	}
	return e
}

// decodeFlow decodes an event about a connection. phase is empty if the event is neither its beginning nor its end.
func decodeFlow(m netlink.Message) (e flow.Entry, phase audit.Phase) {
	const created = netlink.Create | netlink.Excl
	switch {
	case m.Header.Type == flow.MessageNew && m.Header.Flags&created == created:
		phase = audit.PhaseOpen
	case m.Header.Type == flow.MessageDelete:
		phase = audit.PhaseEnd
	default:
		return e, ""
	}
	e, ok := flow.Parse(m.Data)
	if !ok {
		return e, ""
	}
	return e, phase
}

// subscribeForwarded subscribes a socket to the beginning and end of connections that the kernel forwards for boxes. A filter in
// the kernel drops events of other connections (of the host, and those to the proxy), so they neither wake the gateway nor
// fill the socket's buffer.
func subscribeForwarded(fd int) error {
	raw, err := bpf.Assemble(forwardedOnly)
	if err != nil {
		return err
	}
	var filter []unix.SockFilter
	for _, i := range raw {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	for _, group := range []netfilter.NetlinkGroup{netfilter.GroupCTNew, netfilter.GroupCTDestroy} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group)); err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
	}
	return nil
}

// forwardedOnly accepts events of connections with the mark of a forwarded connection of a box.
var forwardedOnly = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegA, Val: unix.SizeofNlMsghdr + flow.HeaderLen}, // the attributes follow the headers of netlink and netfilter
	bpf.LoadConstant{Dst: bpf.RegX, Val: flow.AttributeMark},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // offset of the attribute X, searched from A on; 0: not found
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
	bpf.TAX{},
	bpf.LoadIndirect{Off: unix.SizeofNlAttr, Size: 4}, // in network byte order, like the attribute
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: network.FlowForwarded | network.MarkedBox},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: network.FlowForwarded | network.MarkedBox, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: 1<<32 - 1},
}

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

// Reading the connection table takes time in proportion to its size, so it is only read for a reason.
const (
	tableInterval    = 5 * time.Second // minimum interval between reads for connections that the log may lack
	startedThreshold = 100             // new TCP connections of all boxes that make a read worthwhile
)

// RecoverFlows reports the connections in the kernel's table that began while no gateway ran. since is when the last one is
// known to have run; zero: unknown, all are reported.
func (r *Reports) RecoverFlows(since time.Time) {
	r.readTable(0, func(c *flow.Entry) bool { return since.IsZero() || c.Start.IsZero() || c.Start.After(since) })
}

// findFlows reads the table when events may not have covered every connection: the kernel dropped some, or boxes open so
// many that long-lived ones may not have been logged yet.
func (r *Reports) findFlows() {
	missed := r.flowsMissed.Swap(false)
	many := r.started.Load() >= startedThreshold && time.Since(r.lastRead) >= tableInterval
	if !missed && !many {
		return
	}
	r.lastRead = time.Now()
	r.started.Store(0)
	if missed {
		r.recordDropped()
		r.readTable(0, everyFlow)
		return
	}
	r.readTable(flow.Assured, func(c *flow.Entry) bool { return c.Protocol == policy.TCP })
}

func everyFlow(*flow.Entry) bool { return true }

// readTable records the wanted connections of boxes in the table that have all bits of status.
func (r *Reports) readTable(status uint32, wanted func(*flow.Entry) bool) {
	which := flow.Filter{Mark: network.FlowForwarded, Mask: network.FlowForwarded, Status: status}
	err := r.table.Each(which, func(c *flow.Entry) {
		if wanted(c) {
			r.recordFlow(c, audit.PhaseOngoing)
		}
	})
	if err != nil {
		r.cfg.Log.Error("firewall: the connection table cannot be read; connections may be missing in the log", zap.Error(err))
		r.flowsMissed.Store(true)
	}
}

// recordDropped records how many reports of connections the kernel has dropped, by its own count.
func (r *Reports) recordDropped() {
	total, err := r.flows.dropped()
	n := uint64(total - r.flowsDropped)
	if err != nil || n == 0 {
		n = 1 // at least
	}
	r.flowsDropped = total
	r.cfg.Audit.Record(audit.Event{Time: time.Now(), Stage: policy.StageKernel, Verdict: policy.Allow, Action: audit.ActionKernel,
		Reason: name.ReasonUnnamed, Count: n,
		Error: "reports of connections that the kernel dropped because there were too many; open connections were looked up"})
}

// dropped returns how many events the kernel has dropped so far.
func (s *flowSocket) dropped() (uint32, error) {
	const soMeminfo, drops = 55, 8 // SO_MEMINFO, SK_MEMINFO_DROPS (asm-generic/socket.h, linux/sock_diag.h)
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, soMeminfo, uintptr(unsafe.Pointer(&info)),
		uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return info[drops], nil
}
