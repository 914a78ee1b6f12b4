// Package relay is the HTTP/1.1 engine that egress and public URLs share. It reads the requests of a client's connection ([Client]), sends one
// request to a server over HTTP/1.1 ([Exchange]) and brings the response back, with all that framing takes: bodies of both
// directions, interim responses, trailers, upgrades, requests that are repeated, connections that end.
//
// The two sides judge requests, choose the fields to forward, supply connections to servers and report failures: they implement
// [Side].
package relay
