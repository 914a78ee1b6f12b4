package flow

import (
	"boxgate/firewall/network"
	"boxgate/policy"
)

const (
	dnsPort     = 53 // queries are not counted as traffic
	established = 3  // TCP_CONNTRACK_ESTABLISHED

	// Header bytes of a TCP segment without payload, with timestamps, for IPv4 and IPv6.
	bare4, bare6 = 52, 72
)

// Traffic counts the traffic of a connection.
type Traffic struct {
	Bytes     int64 // approximate payload bytes, both directions
	Forwarded bool  // by the kernel; false: to the gateway
}

// Traffic calls each for the open connections in the table, with their traffic. Keep-alive segments do not count. DNS is
// left out.
func (k *Cutter) Traffic(each func(Flow, Traffic)) error {
	return k.scans.Each(Filter{}, func(e *Entry) {
		if e.Protocol == "" || e.Dst.Port() == dnsPort || e.Protocol == policy.TCP && e.state != established {
			return
		}
		each(e.Flow, Traffic{Bytes: e.content(e.Orig) + e.content(e.Reply), Forwarded: e.Mark&network.FlowForwarded != 0})
	})
}

// content returns the approximate payload bytes in one direction, without acknowledgements of the other.
func (e *Entry) content(n Counter) int64 {
	bare := int64(0)
	if e.Protocol == policy.TCP {
		if bare = bare4; e.Dst.Addr().Is6() {
			bare = bare6
		}
	}
	return int64(n.Bytes) - bare*int64(n.Packets)
}
