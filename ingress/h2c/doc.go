// Package h2c lets a message loop of HTTP/1.1 talk to applications that speak HTTP/2 without TLS (RFC 9113, 3.3), as gRPC
// servers do.
//
// [Pool.Open] returns a net.Conn for one request. What is written to it is the request in the form of HTTP/1.1, which becomes
// a stream of a connection that requests share; what is read from it is the response in that form, trailers included. So the
// rules for fields, bodies, limits and cuts are the same whatever an application speaks, and stand in one place.
//
// The connections are those of [boxgate/internal/h2/upstream]: as strict as towards any server.
package h2c
