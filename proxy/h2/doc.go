// Package h2 stands between golang.org/x/net/http2 and the peers of an HTTP/2 connection. It holds both sides to RFC 9113 where
// the library does not, bounds frames that cost their sender nothing, and says what the library gives no words for: why a stream
// is reset, which requests it refused by itself, which fields must never be indexed.
package h2
