package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
)

// Counters count the traffic of a box's interface since its creation.
type Counters struct {
	Life    string // identifies the interface: a new one counts from zero
	In, Out uint64 // bytes to the box, and from it
}

// fewLinks is the number of interfaces up to which each is queried separately: a dump takes longer with each box of the
// host.
const fewLinks = 16

// Counters reads the counters of the interfaces with these names, using one dump if there are many. Missing interfaces are
// left out. Interfaces that an earlier run left are included even before they are attached again. Safe for concurrent use.
func (l *Links) Counters(names []string) (map[string]Counters, error) {
	found := map[string]Counters{}
	err := namespace.Do(l.ns, func() error {
		if err := l.findLeftLinks(); err != nil {
			return err
		}
		at := l.indicesOf(names)
		var all map[int]transfer
		if len(at) > fewLinks {
			var err error
			all, err = transfers()
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // interfaces came or went during the dump: missing ones are queried below
				return err
			}
		}
		for name, index := range at {
			t, ok := all[index]
			if !ok {
				var err error
				if t, ok, err = transferOf(index); err != nil {
					return err
				}
			}
			if ok {
				found[name] = Counters{Life: strconv.Itoa(index), In: t.sent, Out: t.received}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("counters of interfaces: %w", err)
	}
	return found, nil
}

// findLeftLinks finds the interfaces that an earlier run has left, once. The calling thread must be in the namespace.
func (l *Links) findLeftLinks() error {
	l.mu.Lock()
	surveyed := l.surveyed
	l.mu.Unlock()
	if surveyed {
		return nil
	}
	v := newView()
	if err := v.readLinks(); err != nil {
		return err
	}
	l.recordLinks(v.links)
	return nil
}

// recordLinks records the interfaces in the namespace that the gateway has not attached itself. An interface that has been
// deleted since is treated as missing.
func (l *Links) recordLinks(links map[string]netlink.Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.surveyed {
		return
	}
	l.surveyed = true
	for name, link := range links {
		if _, ok := l.indices[name]; !ok {
			l.indices[name] = link.Attrs().Index
		}
	}
}

// indicesOf returns the indices of the interfaces with these names.
func (l *Links) indicesOf(names []string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := make(map[string]int, len(names))
	for _, name := range names {
		if index, ok := l.indices[name]; ok {
			at[name] = index
		}
	}
	return at
}

// transfer is the traffic of an interface in bytes, as seen by the host.
type transfer struct{ received, sent uint64 }

// Size and offsets of struct if_stats_msg (linux/if_link.h), and offsets of the byte counters in struct rtnl_link_stats64.
const (
	statsHeader   = 12
	statsIndex    = 4
	receivedBytes = 2 * 8
	sentBytes     = 3 * 8
)

// transfers returns the traffic of all interfaces in the namespace of the calling thread, by index. It uses RTM_GETSTATS,
// because a link dump is slow: for each pair the kernel searches all namespaces to name that of the other end. With
// [netlink.ErrDumpInterrupted] some interfaces may be missing.
func transfers() (map[int]transfer, error) {
	messages, err := askStats(0, unix.NLM_F_DUMP)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	all := make(map[int]transfer, len(messages))
	for _, m := range messages {
		if index, t, ok := readStats(m); ok {
			all[index] = t
		}
	}
	return all, err
}

// transferOf is transfers for one interface. ok is false if it does not exist.
func transferOf(index int) (t transfer, ok bool, err error) {
	messages, err := askStats(index, 0)
	if errors.Is(err, unix.ENODEV) {
		return t, false, nil
	}
	if err != nil || len(messages) != 1 {
		return t, false, err
	}
	_, t, ok = readStats(messages[0])
	return t, ok, nil
}

// askStats sends RTM_GETSTATS.
func askStats(index, flags int) ([][]byte, error) {
	ask := nl.NewNetlinkRequest(unix.RTM_GETSTATS, flags)
	header := make([]byte, statsHeader)
	binary.NativeEndian.PutUint32(header[statsIndex:], uint32(index)) //nolint:gosec // an index is positive
	binary.NativeEndian.PutUint32(header[2*statsIndex:], 1<<(unix.IFLA_STATS_LINK_64-1))
	ask.AddRawData(header)
	return ask.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWSTATS)
}

// readStats parses RTM_NEWSTATS.
func readStats(message []byte) (index int, t transfer, ok bool) {
	if len(message) < statsHeader {
		return 0, t, false
	}
	for _, a := range attributes(message[statsHeader:]) {
		if a.kind == unix.IFLA_STATS_LINK_64 && len(a.value) >= sentBytes+8 {
			index = int(binary.NativeEndian.Uint32(message[statsIndex:]))
			t = transfer{binary.NativeEndian.Uint64(a.value[receivedBytes:]), binary.NativeEndian.Uint64(a.value[sentBytes:])}
			return index, t, true
		}
	}
	return 0, t, false
}
