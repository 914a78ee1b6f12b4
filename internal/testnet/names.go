package testnet

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// usualHosts creates the predefined hosts.
func (n *Net) usualHosts() error {
	for name, addrs := range usual {
		if err := n.AddHost(name, addrs...); err != nil {
			return err
		}
	}
	err := n.SetRecords("alias.example.com", "alias.example.com. 60 IN CNAME cdn.example.org.")
	n.zone.changed = false
	return err
}

// AddHost replaces the addresses of a name and makes the servers listen on them. Addresses may be of any range,
// including private ones.
func (n *Net) AddHost(name string, addrs ...string) error {
	parsed := make([]netip.Addr, len(addrs))
	for i, s := range addrs {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		if err := host(n.internet, a); err != nil {
			return err
		}
		parsed[i] = a
	}
	n.zone.setAddrs(name, parsed)
	return nil
}

// Addrs returns the current addresses of a name.
func (n *Net) Addrs(name string) []netip.Addr { return n.zone.addrsOf(name) }

// SetRecords replaces all records of a name. Each record is in zone file form: "www.example.com. 60 IN CNAME
// cdn.example.org.". A name that begins with "*." is a wildcard for all names below. Without records the name is
// removed.
func (n *Net) SetRecords(name string, records ...string) error {
	var rrs []dns.RR
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			return fmt.Errorf("record %q: %w", s, err)
		}
		rrs = append(rrs, rr)
	}
	n.zone.set(name, rrs)
	return nil
}

// SetTTL changes the time to live of a name's records, in seconds.
func (n *Net) SetTTL(name string, ttl uint32) { n.zone.setTTL(name, ttl) }

// SetAnswerer makes f answer the queries for a name, for example with different addresses each time. nil removes it.
func (n *Net) SetAnswerer(name string, f Answerer) { n.zone.setAnswerer(name, f) }
