// Package h2 contains the parts that both sides of HTTP/2 connections share: header blocks, limits, flow-control windows,
// counters of frames that are cheap to send, and the errors that end streams and connections.
package h2
