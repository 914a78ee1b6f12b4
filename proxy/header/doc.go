// Package header selects the fields of a message that are forwarded or set by the proxy, and serializes HTTP/1.1
// heads and chunks. The same rules apply to all HTTP versions.
package header
