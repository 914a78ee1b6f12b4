// Package http2 serves HTTP/2 clients: it has the request of each stream judged, forwards it over the HTTP version that the
// server speaks, and relays the response.
package http2
