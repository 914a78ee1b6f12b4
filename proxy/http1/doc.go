// Package http1 serves HTTP/1.x clients: it reads one request after the other, has each judged, forwards it and brings the response
// back.
package http1
