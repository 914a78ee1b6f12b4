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

// SetReceiveRate changes how many bytes a second the box of an attached interface may receive: see [Rates].
func (l *Links) SetReceiveRate(index int, own int64) error {
	link, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", index, err)
	}
	return l.setShaper(link, own, false)
}

// setShaper limits what passes towards the box to l.Receive bytes a second, or to its own rate, by a token bucket (tc-tbf(8)): senders on this
// host, as the proxy, are held back and lose nothing. A rate in force is changed in place. Without a limit it takes away what an earlier
// run has set.
func (l *Links) setShaper(link netlink.Link, own int64, made bool) error {
	rate := l.Receive
	if own != 0 {
		rate = uint64(max(own, 0))
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(shaperHandle, 0), Parent: netlink.HANDLE_ROOT}
	if rate == 0 {
		if made {
			return nil
		}
		err := l.nl.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("limit of what it receives: %w", err)
		}
		return nil
	}
	burst := max(leastBurst, rate/burstTime)
	err := l.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate, Limit: uint32(burst + max(leastBurst, rate/mostQueue)),
		Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
	if err != nil {
		return fmt.Errorf("limit of what it receives (the kernel may lack CONFIG_NET_SCH_TBF): %w", err)
	}
	return nil
}
