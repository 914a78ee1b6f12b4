// Package conformance runs third-party suites for HTTP/2, gRPC and WebSocket through the gateway.
package conformance
