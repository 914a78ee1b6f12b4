// Package http2 serves HTTP/2 clients: it has the request of each stream judged, forwards it by the version that the server speaks and
// brings the response back.
package http2
