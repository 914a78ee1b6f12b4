// Package handover is the protocol by which one process of the gateway replaces another: the messages between the two
// over a socket pair, including the sockets of the gateway.
//
// The old process starts the new one and sends its sockets (Hello). The new one checks the host and its configuration,
// and reports Prepared. The old one releases the resources that only one process can hold, above all the store, while it
// continues to serve (Yours). The new one opens everything and serves (Serving); the old one stops accepting (Stopped).
// Until then either may fail, and the old process continues, or is replaced by another. From then on the new process
// sends orders (Cut, Policy, URL, Secret, Keys) for the connections that the old one drains, and waits for each Done.
package handover
