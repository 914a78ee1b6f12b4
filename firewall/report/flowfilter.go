package report

import (
	"fmt"

	"github.com/ti-mo/netfilter"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"boxgate/firewall/flow"
	"boxgate/firewall/network"
)

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
