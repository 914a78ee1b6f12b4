package link

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"
)

// Counters are what has passed a box's interface since that was made.
type Counters struct {
	Life    string // identifies the interface: one that is made anew counts from zero
	In, Out uint64 // bytes towards the box, and from it
}

// fewLinks is up to how many interfaces are asked for one by one: the answer about all takes longer with each box of the host.
const fewLinks = 16

// Counters reads the counters of boxes' interfaces, by name, those of all in one dump; of an interface that is not there, none.
func (l *Links) Counters(names []string) (map[string]Counters, error) {
	links, err := l.linksOf(names)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	found := map[string]Counters{}
	for _, link := range links {
		if a := link.Attrs(); a.Statistics != nil {
			found[a.Name] = Counters{Life: strconv.Itoa(a.Index), In: a.Statistics.TxBytes, Out: a.Statistics.RxBytes}
		}
	}
	return found, nil
}

// linksOf returns the interfaces of these names, and maybe others.
func (l *Links) linksOf(names []string) (links []netlink.Link, err error) {
	if len(names) > fewLinks {
		links, err = l.nl.LinkList()
		if errors.Is(err, netlink.ErrDumpInterrupted) { // interfaces came or went meanwhile: most are there
			err = nil
		}
		return links, err
	}
	for _, name := range names {
		link, err := l.linkNamed(name, nil)
		if err != nil {
			return nil, err
		}
		if link != nil {
			links = append(links, link)
		}
	}
	return links, nil
}
