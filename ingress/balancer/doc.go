// Package balancer learns from load balancers whose connections they pass on: by version 2 of the PROXY protocol
// (https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt), a binary header before the first byte of the connection.
//
// Who sends such a header can claim any address. So it is read from the balancers that the operator lists and from nobody
// else; from those it is required.
package balancer
