package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gateName is the name of the filter on every host-side interface.
const gateName = "boxgate_unjudged"

// gatePriority puts it before any other filter.
const gatePriority = 1

// setGate installs a filter on the interface that makes the box's packets undeliverable until they are judged: it marks
// them as not judged, which the routing rules prohibit, and as not for this host, so that the kernel does not forward them
// whatever the routing rules are. Only the chain that admits a packet reverts both. So when the table is gone, not even
// packets with a forged source, which the rules on the pool's addresses do not match, are delivered; and when the routing
// rules are gone as well, no packet is forwarded. The filter belongs to the interface: it survives the gateway and is not
// part of nftables.
//
// The filter of a guest's link does more, see [guestFilter].
func (l *Links) setGate(b *Attachment, link netlink.Link) error {
	program := l.gate
	if b.Tap != nil {
		own := guestFilter{host: linkMAC(b.Box, "host"), guest: linkMAC(b.Box, "box"), v4: b.V4, v6: b.V6, mtu: link.Attrs().MTU, Addresses: l.Addresses}
		fd, err := loadProgram(own.program())
		if err != nil {
			return fmt.Errorf("packet gate (eBPF): %w", err)
		}
		defer func() { _ = unix.Close(fd) }() // the filter keeps the program
		program = fd
	}
	if err := setFilter(l.nl, link.Attrs().Index, program); err != nil {
		return fmt.Errorf("packet gate: %w", err)
	}
	return nil
}

// setFilter makes a program the first filter of arriving packets on an interface.
func setFilter(h *netlink.Handle, index, program int) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0),
		Parent: netlink.HANDLE_CLSACT}}
	if err := h.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return h.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: gatePriority,
			Protocol: unix.ETH_P_ALL},
		Fd: program, Name: gateName, DirectAction: true,
	})
}

// loadGate loads the program of links without a guest and returns its descriptor.
func loadGate() (int, error) {
	p := &assembler{}
	p.gate()
	return loadProgram(p.code())
}
