// Package header decides which fields of a message are forwarded and which the proxy sets, and serializes HTTP/1.1
// heads and chunks. The same rules apply to all HTTP versions.
package header
