package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shaperHandle is the handle of the queue that limits traffic to a box.
const shaperHandle = 0xb0c

// Bounds of a shaper: large enough to send segments of the largest size whole, but only a short moment of traffic, since
// queued packets delay everything else for the box.
const (
	minBurst     = 128 << 10 // bytes
	burstDivisor = 200       // divides the rate: 1/200 second
	queueDivisor = 20        // divides the rate: 1/20 second
)

// SetReceiveRate changes how many bytes per second the box of an attached interface may receive, see [Rates].
func (l *Links) SetReceiveRate(index int, own int64) error {
	link, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", index, err)
	}
	return l.setShaper(link, own, false)
}

// setShaper limits traffic to the box to l.Receive bytes per second, or to its own rate, with a token bucket (tc-tbf(8)):
// senders on this host, such as the proxy, are slowed down without loss. An existing rate is changed in place. Without a
// limit, setShaper removes the limit that an earlier run has set.
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
			return fmt.Errorf("receive limit: %w", err)
		}
		return nil
	}
	burst := max(minBurst, rate/burstDivisor)
	err := l.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate, Limit: uint32(burst + max(minBurst, rate/queueDivisor)),
		Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
	if err != nil {
		return fmt.Errorf("receive limit (the kernel may lack CONFIG_NET_SCH_TBF): %w", err)
	}
	return nil
}
