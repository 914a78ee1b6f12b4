// Package balancer reads the visitor's address from load balancers: version 2 of the PROXY protocol
// (https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt), a binary header before the first byte of the connection.
//
// A sender of such a header can claim any address. So it is read, and required, only from the balancers that the operator
// lists.
package balancer
