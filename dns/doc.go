// Package dns is the DNS server of the boxes. Every query ends here, whatever server the box sent it to, and the box's
// policy decides on the answer:
//
//   - An allowed name is resolved upstream. The gateway follows CNAME chains itself, leaves out addresses that
//     the policy denies, keeps the TTLs (at least a second), and remembers the answer (a [Grant]) before it sends it.
//   - A denied name is never sent upstream. A and AAAA get the sink address with Extended DNS Error 15
//     (Blocked) and a TTL of a second, so that the connection that follows is seen and refused by name; other types
//     get an empty answer with the same error.
//   - An allowed name whose addresses are all denied, or whose CNAME chain has a denied name, gets an
//     empty answer with Extended DNS Error 15: with the sink, the box would connect to a name that the proxy lets through.
//
// The core is [Server.Handle]: bytes in, bytes out, no socket. [Server.ServeUDP] and [Server.ServeTCP] serve it on
// sockets; [Server.Lookup] gives the proxy the same cache and upstreams.
//
// Answers carry no DNSSEC records and never the AD bit: the box could not validate an answer that the policy has
// filtered. Extended errors go only to clients that sent an OPT record (RFC 6891, section 7).
package dns
