// Package header says which fields of a message pass through the proxy and which it sets, and lays out heads and chunks of
// HTTP/1.1. Both versions of HTTP go by its rules.
package header
