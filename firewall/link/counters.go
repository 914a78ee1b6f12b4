package link

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/network"
)

// Counters are what has passed a box's interface since that was made.
type Counters struct {
	Life    string // identifies the interface: one that is made anew counts from zero
	In, Out uint64 // bytes towards the box, and from it
}

// Counters reads the counters of all boxes' interfaces, by name, in one dump.
func (l *Links) Counters() (map[string]Counters, error) {
	links, err := l.nl.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // interfaces came or went meanwhile: most are there
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	all := map[string]Counters{}
	for _, link := range links {
		a := link.Attrs()
		if a.Statistics == nil || !strings.HasPrefix(a.Name, network.LinkPrefix) {
			continue
		}
		all[a.Name] = Counters{Life: strconv.Itoa(a.Index), In: a.Statistics.TxBytes, Out: a.Statistics.RxBytes}
	}
	return all, nil
}
