// Package proxy is the egress proxy of the gateway. It handles every connection in which a name decides or a header
// rule could apply, whether it arrives transparently ([Proxy.ServeTransparent]) or by the explicit proxy protocol
// ([Proxy.ServeExplicit]).
//
// Both handle a connection in the same steps: open an audit event; find the box by its source address and count the
// connection against its limits; read the first bytes without consuming them ([name.Name] from SNI or CONNECT); ask
// the policy for a route; then refuse the connection in its own protocol, splice it unread, or intercept it, which
// means terminating TLS with a leaf of the box's own authority and judging each HTTP request. Plain HTTP is judged
// request by request as well. To a server that does not speak HTTP and that a rule has a login for, the proxy logs in in the
// place of the box. Every address that is dialled was judged as an address.
//
// Open connections are kept in a table; [Proxy.Recheck] routes them again under the policy in force and cuts those it
// denies.
package proxy
