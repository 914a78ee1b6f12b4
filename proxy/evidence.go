package proxy

import "boxgate/policy"

// ground is what a connection is judged by. The zero value is the narrowest.
type ground uint8

const (
	byAddress   ground = iota // the address alone: a name was due and did not come
	byName                    // the name in the client's own bytes
	byToldNames               // what CONNECT, or the DNS answer, said about the address: the protocol has no names
)

// evidence is what the first bytes of a connection and its port say about where it may go. It is the same however the
// connection came: what a client of the explicit proxy says in a tunnel means what it means without one.
// docs/first-bytes.md has the whole table.
type evidence struct {
	ground ground
	name   policy.Name   // of byName
	lack   policy.Reason // of byAddress: what is wrong unless the address alone is allowed
	listed bool          // of byAddress: an address that is merely not denied will not do, it must be in allowed_cidrs
}

// evidence reads what the first bytes say. HTTP/1 is not asked about here: its requests are judged one by one.
func (c *conn) evidence(pol *policy.Compiled, f first) evidence {
	switch {
	case f.kind == kindTLS && !f.name.IsZero():
		return evidence{ground: byName, name: f.name}
	case f.kind == kindTLS:
		return evidence{lack: policy.ReasonNoName}
	case f.kind == kindBadTLS:
		return evidence{lack: policy.ReasonProtocol, listed: true}
	case isWeb(c.port):
		return evidence{lack: policy.ReasonNoName}
	case pol.NamesDecide(c.port) && f.almostNamed():
		return evidence{lack: policy.ReasonProtocol, listed: true}
	default:
		return evidence{ground: byToldNames}
	}
}

// isWeb reports whether a port is one of those of HTTP and HTTPS, where the client speaks first and names its host.
func isWeb(port uint16) bool { return port == 80 || port == 443 }
