// Package h2c lets an HTTP/1.1 message loop talk to applications that speak HTTP/2 without TLS (RFC 9113, 3.3), as gRPC
// servers do.
//
// [Pool.Open] returns a net.Conn for one request. The caller writes the request in the form of HTTP/1.1, and it becomes a
// stream of a shared HTTP/2 connection. The caller reads the response in the same form, including trailers. So the rules for
// fields, bodies, limits and cuts exist once, for both protocols.
//
// The connections are made by [boxgate/relay/h2/upstream], which is as strict with applications as with any server.
package h2c
