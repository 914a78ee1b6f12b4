// Package proxy is the egress proxy of the gateway. Every connection in which a name decides, or a header rule could
// apply, comes here: transparently ([Proxy.ServeTransparent]) or by the explicit proxy protocol ([Proxy.ServeExplicit]).
//
// The way of one connection is the same for both: an audit event is opened; the box is found by its source address and
// the connection is counted against its limits; the first bytes are read without being consumed ([policy.Name] from SNI or CONNECT);
// the policy decides; then the connection is refused in the words of its protocol, spliced unread, or intercepted, that
// is TLS is terminated with a leaf of the box's own authority and each HTTP request is judged by itself. Plain HTTP is
// judged request by request as well. Whatever is dialled was judged at the address being dialled.
//
// Connections that are open stay in a table; [Proxy.Recheck] asks the policy about them again and cuts what it denies.
package proxy
