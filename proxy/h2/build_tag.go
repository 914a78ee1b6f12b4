//go:build go1.27 && !http2legacy

package h2

// With Go 1.27, golang.org/x/net/http2 becomes a wrapper around net/http that hides what this package depends on: it
// shows boxes the debug data of a GOAWAY, accepts requests under another scheme or authority than those of the
// connection, and does not support WebSockets over HTTP/2 (RFC 8441). The build tag http2legacy keeps the
// implementation that this package is written for; the Makefile sets it. The next line does not compile, so that no
// gateway is built without it: use make, or `go build -tags http2legacy`.
var _ = boxgate_needs_the_build_tag_http2legacy_with_go1_27_or_newer
