// Package firewall enforces in the kernel the decisions of a policy that depend only on addresses, and steers other traffic
// to the gateway.
//
// It owns one nftables table, "inet boxgate": static chains that every packet of a box passes, and per box one chain with
// its own address sets, reached by a verdict map on the interface name. `nft list table inet boxgate` shows why a packet is
// dropped: every refusal has a chain, a counter and a comment.
//
// The path of a packet from a box:
//
//	link     the interface marks it "not judged" (link/gate.go)
//	guard    is the source the box's own? fragments, IP options, extension headers are refused (before conntrack)
//	judge    host ports, protected ranges, then the box's chain: pass, to the proxy, or refused
//	nat      port 53 of any server goes to the gateway's DNS server; forwarded packets are masqueraded
//	routing  only packets with a mark of the judge chain are routed (route/route.go)
//
// Each part has a package below: nft the table, link the interfaces, route the routing, flow the connections, report the
// events, watch the detection of changes by other programs, foreign the check of existing rules of other programs. This
// package connects them to boxes.
//
// The routing step makes the firewall fail closed: when the table is gone, packets of boxes are not routed, and when the
// gateway is gone, the table stays and steered packets find no listener.
//
// Every packet in the original direction is judged again, not only the first one of a connection, so a stricter policy
// applies from the next packet on. [Firewall.CutFlows] then removes the connections themselves.
package firewall
