// Package relay is the HTTP engine that egress and public URLs share. It reads the requests of clients over HTTP/1.x ([Client]) and takes those
// over HTTP/2 ([Stream]), sends each to a server over HTTP/1.1 ([Exchange]) and brings the response back, with all that framing takes: bodies of both
// directions, interim responses, trailers, upgrades, requests that are repeated, connections that end.
//
// The two sides judge requests, choose the fields to forward, supply connections to servers and report failures: they implement
// [Side].
package relay
