package flow

import (
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

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
	return k.with(func(c *conntrack.Conn) error {
		flows, err := c.Dump(nil)
		for i := range flows {
			f, ok := Of(&flows[i])
			tcp := flows[i].ProtoInfo.TCP
			if !ok || f.Dst.Port() == dnsPort || flows[i].TupleOrig.Proto.Protocol == unix.IPPROTO_TCP && (tcp == nil || tcp.State != established) {
				continue
			}
			each(f, Passed{
				Bytes:     content(&flows[i].CountersOrig, f) + content(&flows[i].CountersReply, f),
				Forwarded: flows[i].Mark&network.FlowForwarded != 0,
			})
		}
		return err
	})
}

// content is about how many bytes have passed one way, without what acknowledges those of the other.
func content(n *conntrack.Counter, f Flow) int64 {
	bare := int64(0)
	if f.Protocol == policy.TCP {
		if bare = bare4; f.Dst.Addr().Is6() {
			bare = bare6
		}
	}
	return int64(n.Bytes) - bare*int64(n.Packets)
}
