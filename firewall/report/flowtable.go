package report

import (
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

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
