// Package http1 serves HTTP/1.x clients: it reads requests one after another, has each judged, forwards it and relays the
// response.
package http1
