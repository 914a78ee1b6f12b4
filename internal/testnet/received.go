package testnet

import (
	"context"
	"fmt"
)

// Received returns the entries of a host that all filters select, oldest first. The host is a name (with all addresses
// it has or had) or an address; "" is every host. A connection and each request on it are separate entries.
func (n *Net) Received(host string, filters ...Filter) []Received {
	out, _ := n.records.matching(n.matcher(host, filters))
	return out
}

// Await returns as soon as a host has received count entries that all filters select, or with an error when ctx ends.
func (n *Net) Await(ctx context.Context, host string, count int, filters ...Filter) ([]Received, error) {
	for {
		out, changed := n.records.matching(n.matcher(host, filters))
		if len(out) >= count {
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out, fmt.Errorf("%s received %d of %d: %w", host, len(out), count, ctx.Err())
		}
	}
}

// Queries returns the DNS queries for a name, or every query for "".
func (n *Net) Queries(name string) []Received {
	return n.Received("", Of(Query), func(r Received) bool { return name == "" || r.Name == canonical(name) })
}

// Forget drops everything received so far.
func (n *Net) Forget() { n.records.forget() }

// Renew prepares the internet for another test: it resets every connection and drops all records and counts.
func (n *Net) Renew() {
	n.conns.reset(func(*recordedConn) bool { return true })
	n.records.forget()
	n.packets.forget()
}

// Changed reports whether names, addresses or servers differ from a new internet's.
func (n *Net) Changed() bool {
	n.zone.mu.Lock()
	defer n.zone.mu.Unlock()
	n.closersMu.Lock()
	defer n.closersMu.Unlock()
	return n.zone.changed || n.changed
}

func (n *Net) matcher(host string, filters []Filter) Filter {
	addrs := n.zone.everOf(host)
	return func(r Received) bool {
		if host != "" && !addrs[r.Addr.Addr()] {
			return false
		}
		for _, f := range filters {
			if f != nil && !f(r) {
				return false
			}
		}
		return true
	}
}

// Packets returns the packets that reached a host, of any protocol, if [Options.Capture] was set. The host is a name or
// an address; "" is every host.
func (n *Net) Packets(host string) []Packet {
	if host == "" {
		return n.packets.to(nil)
	}
	addrs := n.zone.everOf(host)
	if addrs == nil {
		return nil
	}
	return n.packets.to(addrs)
}
