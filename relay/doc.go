// Package relay is the HTTP/1.1 engine that egress and public URLs share. It reads the requests of a client's connection ([Client]), sends one
// request to a server over HTTP/1.1 ([Exchange]) and brings the response back, with all that framing takes: bodies of both
// directions, interim responses, trailers, upgrades, requests that are repeated, connections that end.
//
// Who judges a request, which fields pass, where the connection to the server comes from and what is said of a failure is the
// business of the two sides: they implement [Side].
package relay
