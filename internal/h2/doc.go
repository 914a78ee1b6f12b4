// Package h2 has what both sides of HTTP/2 connections need: header blocks, limits, windows, and counters of frames that cost their
// sender nothing, and the errors that end streams and connections.
package h2
