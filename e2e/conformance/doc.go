// Package conformance runs the suites of others for HTTP/2, gRPC and WebSocket through the gateway.
package conformance
