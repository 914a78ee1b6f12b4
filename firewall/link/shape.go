package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shaperHandle is the handle of the queue that holds back what is sent to a box.
const shaperHandle = 0xb0c

// What a shaper holds: enough to send segments of the largest size whole, and no more than a moment of traffic, since what
// waits in it delays everything else that is for the box.
const (
	leastBurst = 128 << 10 // bytes
	burstTime  = 200       // a 200th of a second at the rate
	mostQueue  = 20        // a 20th of a second at the rate
)

// setShaper limits what passes towards the box to l.Receive bytes a second, by a token bucket (tc-tbf(8)): senders on this
// host, as the proxy, are held back and lose nothing. Without a limit it takes away what an earlier run has set.
func (l *Links) setShaper(link netlink.Link, made bool) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(shaperHandle, 0), Parent: netlink.HANDLE_ROOT}
	if l.Receive == 0 {
		if made {
			return nil
		}
		err := l.nl.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("limit of what it receives: %w", err)
		}
		return nil
	}
	burst := max(leastBurst, l.Receive/burstTime)
	err := l.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: l.Receive, Limit: uint32(burst + max(leastBurst, l.Receive/mostQueue)),
		Buffer: netlink.Xmittime(l.Receive, uint32(burst)),
	})
	if err != nil {
		return fmt.Errorf("limit of what it receives (the kernel may lack CONFIG_NET_SCH_TBF): %w", err)
	}
	return nil
}
