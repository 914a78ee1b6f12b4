package flow

import (
	"boxgate/firewall/network"
	"boxgate/policy"
)

const (
	dnsPort     = 53 // queries are no traffic of their own
	established = 3  // of the kernel's states of TCP connections

	// What a segment of TCP without content has of headers, with timestamps, for IPv4 and IPv6.
	bare4, bare6 = 52, 72
)

// Passed is what has passed in a connection.
type Passed struct {
	Bytes     int64 // about how many bytes of content, both ways
	Forwarded bool  // by the kernel, rather than to the gateway
}

// Traffic calls each for the open connections of the table with what has passed in them. Segments that only keep a connection open
// count for nothing. DNS is left out.
func (k *Cutter) Traffic(each func(Flow, Passed)) error {
	return k.looks.Each(Which{}, func(e *Entry) {
		if e.Protocol == "" || e.Dst.Port() == dnsPort || e.Protocol == policy.TCP && e.state != established {
			return
		}
		each(e.Flow, Passed{Bytes: e.content(e.Orig) + e.content(e.Reply), Forwarded: e.Mark&network.FlowForwarded != 0})
	})
}

// content is about how many bytes have passed one way, without what acknowledges those of the other.
func (e *Entry) content(n Counter) int64 {
	bare := int64(0)
	if e.Protocol == policy.TCP {
		if bare = bare4; e.Dst.Addr().Is6() {
			bare = bare6
		}
	}
	return int64(n.Bytes) - bare*int64(n.Packets)
}
