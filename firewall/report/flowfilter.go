package report

import (
	"errors"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// openFlows opens a socket that hears of connections that begin and end, those that the kernel forwards for boxes alone.
// The others, of the host and those that the proxy takes, are told apart in the kernel: they never wake the gateway, nor
// fill the socket's buffer.
func openFlows(ns int) (*netlink.Conn, error) {
	const longest = 16 << 10 // of an event, several times over
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns, MessageBufferSize: longest})
	if err != nil {
		return nil, err
	}
	filter, err := bpf.Assemble(forwardedOnly)
	if err == nil {
		err = errors.Join(c.SetBPF(filter), c.JoinGroup(uint32(netfilter.GroupCTNew)), c.JoinGroup(uint32(netfilter.GroupCTDestroy)))
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// forwardedOnly accepts events of connections that carry the mark of one that is forwarded for a box.
var forwardedOnly = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegA, Val: unix.SizeofNlMsghdr + nfgenmsgLen}, // the attributes follow the headers of netlink and netfilter
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaMark},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // where the attribute X is, from A on; 0: nowhere
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
	bpf.TAX{},
	bpf.LoadIndirect{Off: unix.SizeofNlAttr, Size: 4}, // in network byte order, as the attribute is
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: network.FlowForwarded | network.MarkedBox},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: network.FlowForwarded | network.MarkedBox, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: 1<<32 - 1},
}
