// Package conformance runs third-party suites for HTTP/2 and gRPC, and a set of WebSocket cases, against a host: once
// directly and once through the gateway. The results are compared case by case, which reveals any change made by the
// gateway. Only tests import it.
//
// The client of a suite is a separate process ([Client]) in the network namespace that it connects from. Like a program
// in a box, it has only a DNS server and a file of trusted certificates. The servers ([ServeGRPC], [HTTP2Handler],
// [ClientCases]) run in the test.
package conformance
