// Package firewall enforces in the kernel what a policy decides by address alone, and steers the rest to the gateway.
//
// It owns one nftables table, "inet boxgate": static chains through which every packet of a box goes, and per box one
// chain with its own address sets, reached by a verdict map on the interface name. `nft list table inet boxgate` shows
// why a packet is dropped: every refusal has a chain, a counter and a comment.
//
// The path of a packet from a box:
//
//	link     the interface marks it "not judged" (link/gate.go)
//	guard    is the source the box's own? fragments, IP options, extension headers are refused (before conntrack)
//	judge    host ports, protected ranges, then the box's chain: pass, to the proxy, or refused
//	nat      port 53 goes to the gateway's DNS server, whatever server was asked; what passes is masqueraded
//	routing  only packets that carry a mark of judge are routed at all (route/route.go)
//
// Each part has a package below: nft the table, link the interfaces, route the routing, flow the connections, report the
// events, watch what other programs change, foreign what they had set before. This package ties them to boxes.
//
// The last step makes the firewall fail closed: when the table is gone, boxes reach nothing, and when the gateway is
// gone, the table stays and steered packets find no listener.
//
// Every packet in the original direction is judged again, not only the first of a connection, so a tightened policy
// applies from the next packet on; [Firewall.CutFlows] then removes the connections themselves.
package firewall
