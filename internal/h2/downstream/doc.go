// Package downstream serves HTTP/2 clients (RFC 9113, RFC 8441): one goroutine reads the frames of a connection, one
// writes them in batches while there is anything to write, and each request has a goroutine of its own. Requests that
// break the protocol are refused here, each with one call of Config.Refused; what a request asks for is its handler's to
// judge.
package downstream
