// Package conformance runs suites that others wrote for HTTP/2 and gRPC, and a set of cases for WebSocket, against a host:
// once straight at it and once through the gateway. What the two say is compared case by case, so that whatever the
// gateway changes is seen. Only tests import it.
//
// A suite's client is a process of its own ([Client]), started in the network namespace it is to speak from, which knows
// nothing but what a program in a box knows: a DNS server, and a file with the certificates it trusts. The servers
// ([ServeGRPC], [HTTP2Handler], [ClientCases]) run in the test.
package conformance
