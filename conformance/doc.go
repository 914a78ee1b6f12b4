// Package conformance runs third-party suites for HTTP/2 and gRPC, and a set of WebSocket cases, against a host: once
// directly and once through the gateway. The results are compared case by case, so that any change made by the gateway
// is noticed. Only tests import it.
//
// A suite's client is a separate process ([Client]), started in the network namespace it is to connect from. It knows
// only what a program in a box knows: a DNS server, and a file of trusted certificates. The servers ([ServeGRPC],
// [HTTP2Handler], [ClientCases]) run in the test.
package conformance
