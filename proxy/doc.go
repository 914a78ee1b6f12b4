// Package proxy is the egress proxy of the gateway. It handles every connection whose decision depends on a name or to
// which a header rule could apply, whether it arrives transparently ([Proxy.ServeTransparent]) or by the explicit proxy
// protocol ([Proxy.ServeExplicit]).
//
// Both handle a connection in the same steps: open an audit event; find the box by its source address and count the
// connection against its limits; read the first bytes without consuming them ([name.Name] from SNI or CONNECT); evaluate
// the policy to get a route; then refuse the connection in its own protocol, splice it unread, or intercept it, which means
// terminating TLS with a leaf of the box's own authority and judging each HTTP request. Plain HTTP is judged request by
// request as well. If a rule has a login for a server that does not speak HTTP, the proxy logs in on behalf of the box.
// Every dialled address was judged as an address.
//
// Open connections are kept in a table; [Proxy.Recheck] routes them again under the current policy and cuts those it
// denies.
package proxy
