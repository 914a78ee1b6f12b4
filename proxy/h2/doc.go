// Package h2 has what both sides of HTTP/2 connections need: limits, windows, and counters of frames that cost their
// sender nothing. To servers it sits between golang.org/x/net/http2 and the connection: it enforces RFC 9113 where the
// library does not, and marks fields that must never be indexed.
package h2
